"""Recurring jobs: items of a crontab, their due minutes, and their scheduler. Modules above the line are pure.

crontab.py     a crontab's text, or `CronItem`s written in Python, as parsed items
command.py     the task, its options and its payload, after the five fields of a line
check.py       the check of an item, and its normalized text
item.py        an item, its due times, and the job of one tick
fields.py      the five fields, and the minutes of the wall clock that match them
zones.py       time zones: the real minutes of wall clock times, including skipped and repeated ones
agenda.py      the minutes that a scheduler has not examined yet
---
known_items.py the items that a store knows: unscheduled ones, missed ticks
scheduler.py   the loop that writes ticks into the store's ledger
sources.py     items of an application, and a scheduler beside its worker
"""
