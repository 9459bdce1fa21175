"""What the queue and a user's table do alike on PostgreSQL.

plan       what differs: statements, and how errors are called. A plan decides nothing and opens nothing
settler    records how attempts ended
leaser     renews leases, hands them back, takes them back from the dead: the heartbeats of both
listener   waits for notifications
"""
