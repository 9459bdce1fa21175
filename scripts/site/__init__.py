"""The site of the documentation: pages as they lie in the repository, navigation as their index pages give it."""
