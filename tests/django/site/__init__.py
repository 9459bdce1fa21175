"""A project of Django's, for tests."""
