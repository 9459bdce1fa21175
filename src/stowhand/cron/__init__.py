"""Recurring jobs: items of a crontab, the minutes at which they are due, and their scheduler. Pure up to the line.

crontab.py     a crontab's text, or `CronItem`s written in Python, as parsed items
command.py     the task, its options and its payload, behind the five fields of a line
check.py       the check of an item, and its one spelling
item.py        an item, when it is due, and the job of one tick
fields.py      the five fields: which minutes of the wall clock match
zones.py       time zones: which real minutes those are, skipped and repeated ones included
agenda.py      the minutes that a scheduler has not looked at yet
---
known_items.py the items that a store knows: unscheduled ones, missed ticks
scheduler.py   the loop, which enters ticks into the store's ledger
sources.py     items of an application, and a scheduler beside its worker
"""
