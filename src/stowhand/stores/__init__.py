"""The places where jobs are kept, and the connections to them. None imports another.

url.py        a store by its URL: one spelling for it, and each is imported only when it is asked for
database/     connections and named statements; does not know what a job is
postgres/, sqlite/    queue/: the store that we own; table/: a table of a user's; shared/: what both do alike
table/        what any table of a user's is, whichever database holds it
kernel/       the reads of the stores that we own, written once
verdicts.py   what every store replies to a settlement
calls.py      calls to a table, timed and reported
foreign_leases.py, passed_over.py    what the stores that we own judge alike

A store that is lent over HTTP is remote/client, the one of flows on Redis is flows/redis.
"""
