#!/bin/sh
# From an empty database to a greeting. Run it where the folder `tasks` is:
#
#   DATABASE_URL=postgresql:///my_db sh quickstart.sh
#
# Without the variable, the commands take the database as `-c my_db` or `-c postgresql://user:password@host:port/my_db`.
set -eu

stowhand worker --schema-only  # or: stowhand migrate
psql "$DATABASE_URL" --quiet --file=hello.sql
stowhand worker --once  # without --once it waits for more
