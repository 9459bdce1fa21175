"""The tables at number 100 of PostgreSQL, 100 of SQLite."""

from stowhand.django.tables import numbered

Migration = numbered(postgres=100, sqlite=100)
