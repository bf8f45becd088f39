"""What snapshots hold beyond a cut, and what they miss of it: for a look at the views from outside the job."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.timeline import POSITION, UNNUMBERED
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import SnapshotLost
from viewkeeper.job.assembly import Project
from viewkeeper.job.freezing import Frozen
from viewkeeper.job.inlets import inlets
from viewkeeper.messages import ORDINAL, Received
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
    return Queue(_unnumbered(received)).and_older(older.changes)


def _unnumbered(received: Received) -> dict[tuple[str, str], pa.Table]:
    """The changes, as later than every update that a cut holds."""
    tags = np.fromiter((update.known_by for update in received.updates), np.int64, len(received.updates))
    tables = {}
    for name, changes in received.changes.items():
        table = changes.drop_columns([ORDINAL])
        table = table.append_column(UPDATE, pa.array(np.full(len(table), UNNUMBERED)))
        tables[name] = table.append_column(POSITION, pa.array(tags[changes[ORDINAL].to_numpy()]))
    return tables
