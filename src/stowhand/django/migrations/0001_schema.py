"""The tables at number 30 of PostgreSQL, 17 of SQLite."""

from stowhand.django.tables import numbered

Migration = numbered(postgres=30, sqlite=17)
