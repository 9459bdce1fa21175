"""Reads, written once for all engines: what is asked, in SQL that each engine understands, and what the rows mean.

inspector     what people ask of a store
lists, search, counts, due, serial keys, workers, failures, throughput, explanation      questions: generators of
queries (question.py)
reasons       why a job does not run, judged by what an explanation has found
known_tasks   which tasks there are, and who has them
search_progress      the parts of a search
steps         what people ask of the steps of flows
columns       which columns a job is made of
dialect       how the SQL written here becomes an engine's
results       the poll that callers who wait for results share
"""
