"""A user's table as a queue for workers.

options.py      TableOptions: the options of a table, and its expressions
names.py        names of tables and columns, parsed and quoted; arguments.py: other arguments
user_sql.py     expressions and conditions as SQL
check.py        problems of a table, and SQL that fixes them; ddl.py: a new table as SQL
records.py      builds records from rows
claims.py       bad records of a claim, and abandoned claims
store.py        TableStore, for workers and users; attempt_store.py: ctx.store, for handlers
backend.py      the interface of a database: postgres/, sqlite/
"""
