"""Client of a lent store (``stowhand serve``): a worker needs a token, but no access to a database.

options.py      options of the connection
store.py        HttpStore: the store of a worker or an application        (start reading here)
http_caller.py  requests: size, deadlines, replies and errors
claims.py       claims and settlements, with the authorization of each lease
jobs.py         enqueued jobs, single jobs, and outcomes of jobs
heartbeats.py   heartbeats, releases and resets, on a loop in another thread
attempt.py      the store of a running handler: its execution log, and requeueing
"""
