"""The common parts of the queue and of a user's table on PostgreSQL.

plan       the parts that differ: statements and error messages. A plan decides nothing and opens nothing
settler    records the outcomes of attempts
leaser     renews, releases and resets leases: the heartbeats of both
listener   waits for notifications
"""
