"""The tables at number 31 of PostgreSQL, 17 of SQLite."""

from stowhand.django.tables import numbered

Migration = numbered(postgres=31, sqlite=17, after="0001_schema")
