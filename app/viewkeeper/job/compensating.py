"""What snapshots hold beyond a cut, and what they miss of it: for a look at the views from outside the job."""

from __future__ import annotations

import threading

from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import SnapshotLost
from viewkeeper.integrator.integrator import unnumbered
from viewkeeper.job.assembly import Project
from viewkeeper.job.freezing import Frozen
from viewkeeper.job.inlets import inlets
from viewkeeper.messages import Received
from viewkeeper.queue.drain import Drain
from viewkeeper.queue.unsettled import Unsettled
from viewkeeper.queue.update_queue import UpdateQueue
from viewkeeper.warehouse.cuts import Cut


def beyond(project: Project, cut: Cut, at: Frozen) -> Queue:
    """The changes to compensate answers by, so that they are as of the cut.

    Raises SnapshotLost if a relation was emptied since the cut: its rows at the cut can be had no more.
    """
    tokens = at.barriers(at.snapshots)
    if not tokens:
        return Queue()
    queue = UpdateQueue(inlets(project, cut, tokens), quarantine=True)
    received = Received([], {}, [])
    drain = Drain(project.config.kafka.client())
    try:
        for more in drain.to_barriers(queue, tokens, threading.Event()):
            received = received.and_then(more)
    finally:
        drain.close()
    at.require_unbroken(queue, tokens)
    for truncation in received.truncated:
        what = f"{truncation.relation} was emptied since cut {cut.cut}, so it cannot be seen as it was then"
        raise SnapshotLost.at(f"source {truncation.source}", what, "try again when the job has made a newer cut")
    older = Unsettled().and_again(received.again, cut.last_update)
    return Queue(unnumbered(received)).and_older(older.changes)
