"""Functions as tasks: declaring them, enqueueing jobs for them, and running claimed jobs.

shape.py       the parameters of a function, and reading and writing payloads for them
registry.py    the declared functions, by name
task.py        a declared function: it can be called and enqueued
dispatch.py    the worker's handler, which calls the task of a claimed job
context.py     the running attempt as its task sees it
batch.py       a payload that is an array, and a retry of the elements that failed
discovery.py   a folder of tasks, one file each
executable.py  an executable file of that folder as a task
program.py     a child process: its input, its output by line, and its exit
"""
