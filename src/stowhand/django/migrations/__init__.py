"""One for each number of the schema: written by scripts/dump-schema."""
