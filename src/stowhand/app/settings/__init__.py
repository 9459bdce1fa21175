"""What can be set, in one table, and the places where it is read."""
