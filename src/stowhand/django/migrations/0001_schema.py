"""The tables at number 27 of PostgreSQL, 15 of SQLite."""

from stowhand.django.tables import numbered

Migration = numbered(postgres=27, sqlite=15)
