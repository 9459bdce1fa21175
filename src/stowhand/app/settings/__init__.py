"""The table of all settings, and the sources from which they are read."""
