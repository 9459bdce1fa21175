"""Reads of a queue, written once for all engines: SQL that each engine understands, and the conversion of its rows.

inspector     overviews, lists and searches for people
lists, search, counts, due, serials, workers, failures, throughput, explanation      questions: generators of
queries (question.py)
reasons       why a job does not run, derived from the state that an explanation has read
known_tasks   the known tasks and queues, and the workers that serve them
search_progress      the parts of a search
steps         overviews of the steps of flows
columns       the columns of a job
dialect       the translation of this SQL for an engine
results       the shared poll of callers that wait for results
"""
