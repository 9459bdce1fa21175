"""What the queue and a user's table in an SQLite file share.

plan     what differs between them: the work of one transaction
settler  records how attempts ended
leaser   renews leases, releases and resets
"""
