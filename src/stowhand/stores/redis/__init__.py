"""Flows on Redis or Valkey: one script per transition, the keys and hashes of the layout that the flow declares.

address.py, dialing.py    where it is; clients for calls, for waits, for the heartbeat's thread
trouble.py, facts.py      what its errors mean for the caller; what is looked at when a store opens
layout.py, naming.py      the names of keys, and the ids that people see
scripts.py, lua/          the transitions
lines.py, values.py       a queue and a hash as the scripts know them
claiming.py, ending.py    what a claim brings, and what a completed step leaves behind
settling.py, heart.py     how attempts end, and what keeps their leases true
waiting.py                how an idle worker hears of jobs
store.py                  all of it, as a store for workers
jobs.py, retrying.py      new jobs, jobs to be forgotten, failed jobs once more
looking.py, standing.py   what is there, and how much of it
"""
