"""Reads, written once for all engines: what is asked, in SQL that each engine understands, and what the rows mean.

inspector     what people ask of a store
lists, search, counts, due, queues, workers, failures, explanation      questions: generators of queries (question.py)
columns       which columns a job is made of
dialect       how the SQL written here becomes an engine's
results       the poll that callers who wait for results share
"""
