"""What recurs: items of a crontab, the minutes at which they are due, and who makes jobs of those. Pure up to the line.

crontab.py     a crontab's text, or `CronItem`s written in Python, as parsed items
command.py     what follows the five fields of a line: the task, its options, its payload
check.py       what an item must be; its one spelling
item.py        an item, when it is due, and the job of one tick
fields.py      the five fields: which minutes of the wall clock match
zones.py       time zones: which real minutes those are, skipped and repeated ones included
phrases.py     time phrases such as 4w3d2h1m
agenda.py      what a scheduler has still to look at
---
scheduler.py   the loop around all that, and ticks into the store's ledger
"""
