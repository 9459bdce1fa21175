"""A store lent over HTTP (``stowhand serve``): a worker needs a token, and no access to a database.

options.py      the address and how to reach it
store.py        HttpStore: the store that a worker or an application uses        (start reading here)
http_caller.py  requests: size, deadlines, replies, what went wrong
claims.py       claim and settle, with the authorization that the server returned with each lease
jobs.py         enqueue, look at a job, ask how jobs ended
heartbeats.py   beat, release, abandon: on a loop in another thread
attempt.py      what a running handler is given: its execution log, requeue
"""
