"""The tables at number 35 of PostgreSQL, 20 of SQLite."""

from stowhand.django.tables import numbered

Migration = numbered(postgres=35, sqlite=20, after="0003_schema")
