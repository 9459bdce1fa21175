"""A store in memory: the specification as an example."""
