"""Functions as tasks: declaring them, enqueueing jobs for them, and running what a worker has claimed.

shape.py       how a function's parameters and a payload fit together
registry.py    which functions there are, by name
task.py        what a declared function can do: be called, be enqueued
dispatch.py    the worker's handler: from a claimed job to a call
context.py     what a running task can ask and say
batch.py       a payload that is an array, and what is left of it when some of it failed
discovery.py   a folder of tasks, one file each
executable.py  a file of it that is run as a program
program.py     running one: its input, what it says, its end
"""
