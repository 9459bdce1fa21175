"""Flows: jobs that pass queues one after another, with children, delays and limits; on Redis or on any queue store.

flow.py      Flow: what a program declares and uses      (start reading here)
engine.py    the protocol of the two engines: queue/ (any queue store) and redis/
step_handler.py  one execution of a worker function, and its outcome
worker.py    the worker of one queue: ready, running, stopping, stopped
"""

from stowhand.flows.engine import Position, QueueCount
from stowhand.flows.flow import Flow
from stowhand.flows.job import FlowJob, FlowJobFailed, FlowJobView, Stage
from stowhand.flows.monitor import FlowMonitor
from stowhand.flows.step_handler import DelayError
from stowhand.flows.worker import FlowWorker, Status
from stowhand.protocols.flow_shape import FlowShape, Layout, Limiter, Queue

__all__ = [
    "DelayError",
    "Flow",
    "FlowJob",
    "FlowJobFailed",
    "FlowJobView",
    "FlowMonitor",
    "FlowShape",
    "FlowWorker",
    "Layout",
    "Limiter",
    "Position",
    "Queue",
    "QueueCount",
    "Stage",
    "Status",
]
