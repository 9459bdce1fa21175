"""The tables at number 34 of PostgreSQL, 20 of SQLite."""

from stowhand.django.tables import numbered

Migration = numbered(postgres=34, sqlite=20, after="0002_schema")
