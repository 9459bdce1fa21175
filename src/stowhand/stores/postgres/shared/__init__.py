"""What the queue and a user's table do alike on PostgreSQL.

plan       what differs: statements, and how errors are called. A plan decides nothing and opens nothing
settler    records how attempts ended
listener   waits for notifications
"""
