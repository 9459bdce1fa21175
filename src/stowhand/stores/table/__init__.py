"""Any table is a queue: a table that an application owns, served by workers.

options.py      TableOptions: how the table is served; its expressions
names.py        names of tables and columns, parsed and quoted; arguments.py: what else is read
user_sql.py     expressions and conditions as SQL
check.py        what is wrong with a table, and SQL for it; ddl.py: a new table as SQL
records.py      rows become records
claims.py       which records of a claim are bad, whose claims were abandoned, when the next record is due
store.py        TableStore: what a worker and people see; attempt_store.py: what a running handler sees
backend.py      what a database must be able to do: postgres/, sqlite/
"""
