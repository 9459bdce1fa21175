"""The common parts of the queue and of a user's table in an SQLite file.

plan     the parts that differ: the work of one transaction
settler  records the outcomes of attempts
leaser   renews leases, releases and resets
"""
