"""Stores of jobs, and the connections to them. No store imports another.

url.py        normalizes a store's URL and opens the store, importing it only then
database/     connections and named statements; knows nothing about jobs
postgres/, sqlite/    queue/: our own tables; table/: a user's table; shared/: the code of both
table/        the parts of a user's table that are the same in every database
kernel/       the reads of our own tables, the same for every database
verdicts.py   the replies of every store to a settlement
calls.py      timed and reported calls
foreign_leases.py, passed_over.py    rules that several stores share

The client of a store lent over HTTP is remote/client; the store of flows on Redis is flows/redis.
"""
