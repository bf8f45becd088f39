"""Transactions over several sources that a load would show in part: it takes them out again.

Snapshots of several sources are not taken at one moment, so they may include one part of such a transaction and not
another. The load then stands before the parts that are there, and before everything that their sources did after them;
its answers are compensated for all of it. Afterwards the transaction is received and numbered like any other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import SourceUnreachable
from viewkeeper.integrator.arrange import arrange, taken
from viewkeeper.integrator.integrator import unnumbered
from viewkeeper.job.assembly import Project
from viewkeeper.job.freezing import Frozen
from viewkeeper.job.inlets import inlet_at
from viewkeeper.messages import Reached, Received
from viewkeeper.queue import consumer
from viewkeeper.queue.update_queue import UpdateQueue

LOOK_BACK = 10_000
"""Messages of a topic that are looked at where the configuration does not say that transactions span its source."""

PATIENCE = 5.0
"""Seconds without a message after which a topic is not waited for any more, in one attempt."""


@dataclass(frozen=True)
class LoadPoint:
    """Where a load stands: positions and offsets of its sources, and what compensates their answers to it."""

    positions: dict[str, str]
    offsets: dict[str, int]
    queue: Queue


def whole_transactions(
    project: Project, at: Frozen, positions: Mapping[str, str], offsets: Mapping[str, int]
) -> LoadPoint:  # fmt: skip
    """The point at which these frozen sources show every transaction over several of them whole.

    ``positions`` and ``offsets`` are where a load of everything that the snapshots include would stand.
    """
    told = {name: reached for name, text in positions.items() if not at.sources[name].late and (reached := int(text))}
    if len(told) < 2:
        return LoadPoint(dict(positions), dict(offsets), Queue())
    received = _included(project, at, told)
    waiting = arrange(received, told).waiting
    stands = {name: Reached.parse(text) for name, text in positions.items()}
    first = dict(offsets)
    for update in reversed(waiting.updates):
        stands[update.source] = replace(stands[update.source], last=update.position - 1)
        first[update.source] = update.first_offset
    return LoadPoint({n: str(reached) for n, reached in stands.items()}, first, Queue(unnumbered(waiting)))


def _included(project: Project, at: Frozen, told: Mapping[str, int]) -> Received:
    """The updates in the topics that the snapshots include, as far as they may be parts of one transaction."""
    client = project.config.kafka.client()
    topics = {name: project.config.sources[name].topic for name in told}
    bounds = consumer.bounds(client, list(topics.values()))
    declared = {name for spanned in project.config.global_txn for name in spanned} & told.keys()
    inlets = []
    for name, topic in topics.items():
        low, high = bounds[topic]
        inlets.append(inlet_at(project, name, Reached(0), low if name in declared else max(low, high - LOOK_BACK)))
    queue = UpdateQueue(inlets, quarantine=True)
    ends = {topic: high for topic, (_, high) in bounds.items()}
    wanted = {name: min(told[name], int(at.sources[name].last_change())) for name in declared}
    received, silent = Received([], {}, []), time.monotonic()
    while behind := _behind(queue, wanted, ends):
        messages = consumer.read(client, behind, seconds=0.5)
        if len(messages):
            received, silent = received.and_then(queue.receive(messages)), time.monotonic()
            continue
        queue.skip_to(ends)  # what is left there are control records
        if behind and time.monotonic() - silent > PATIENCE:
            topic = next(iter(behind))
            raise SourceUnreachable.at(f"topic {topic}", "does not tell what its source has done", "start its capture")
    return taken(received, [i for i, u in enumerate(received.updates) if u.position <= told[u.source]])


def _behind(queue: UpdateQueue, wanted: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, int]:
    """The topics that have not been read far enough, and from where on to read them."""
    return {
        inlet.topic: inlet.offset
        for inlet in queue.inlets.values()
        if inlet.offset < ends[inlet.topic] or inlet.passed < wanted.get(inlet.source, 0)
    }
