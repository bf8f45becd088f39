"""Transactions over several sources that a load would show in part: it takes them out again.

Snapshots of several sources are not taken at one moment, so they may include one part of such a transaction and not
another. The load then stands before the parts that are there, and before everything that their sources did after them;
its answers are compensated for all of it. Afterwards the transaction is received and numbered like any other.

Topics tell which parts there are, and they may have lost their beginnings, or begun when others had told much already.
A part counts as missing only if its message would be among those that were read, and a transaction that the newest cut
holds was whole.
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
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.messages import FURTHEST, Reached, Received, Update
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
    project: Project, at: Frozen, positions: Mapping[str, str], offsets: Mapping[str, int], held: Mapping[str, int]
) -> LoadPoint:
    """The point at which these frozen sources show every transaction over several of them whole.

    ``positions`` and ``offsets`` are where a load of everything that the snapshots include would stand; ``held`` is up
    to where the newest cut holds the updates of its sources.
    """
    sources = {name: source for name, source in at.sources.items() if isinstance(source, SqliteSource)}
    told = {name: reached for name in sources if (reached := int(positions[name]))}
    if len(told) < 2:
        return LoadPoint(dict(positions), dict(offsets), Queue())
    received = _included(project, sources, told, held)
    waiting = arrange(received, told).waiting
    stands, first = dict(positions), dict(offsets)
    for update in reversed(waiting.updates):
        stands[update.source] = str(_before(update, received, project, sources[update.source]))
        first[update.source] = update.first_offset
    return LoadPoint(stands, first, Queue(unnumbered(waiting)))


def _before(update: Update, received: Received, project: Project, source: SqliteSource) -> int:
    """Where a source stands before an update: a position has a number for each row, so it is none of the update's."""
    earlier = [u.position for u in received.updates if u.source == update.source and u.position < update.position]
    began = [since for columns in project.captures[update.source].since().values() for since in columns.values()]
    captured = [since for since in began if since < update.position]
    return max([*earlier, *captured, source.forgotten()])


def _included(
    project: Project, sources: Mapping[str, SqliteSource], told: Mapping[str, int], held: Mapping[str, int]
) -> Received:
    """The updates in the topics that the snapshots include, as far as they may be parts of one transaction."""
    client = project.config.kafka.client()
    topics = {name: project.config.sources[name].topic for name in told}
    bounds = consumer.bounds(client, list(topics.values()))
    declared = {name for spanned in project.config.global_txn for name in spanned} & told.keys()
    inlets = []
    for name, topic in topics.items():
        low, high = bounds[topic]
        inlets.append(inlet_at(project, name, Reached(0), low if name in declared else max(low, high - LOOK_BACK)))
    begins = [inlet.offset for inlet in inlets]
    queue = UpdateQueue(inlets, quarantine=True)
    ends = {topic: high for topic, (_, high) in bounds.items()}
    wanted = {name: _last_told(sources[name], told[name]) for name in declared}
    received, silent = Received([], {}, []), time.monotonic()
    while behind := _behind(queue, wanted, ends):
        messages = consumer.read(client, behind, seconds=0.5)
        if len(messages):
            received, silent = received.and_then(queue.receive(messages)), time.monotonic()
            continue
        queue.skip_to(ends)  # what is left there are control records
        if behind and time.monotonic() - silent > PATIENCE:
            topic = next(iter(behind))
            name = next(name for name in topics if topics[name] == topic)
            remedy = f"start its capture: 'viewkeeper capture {project.config.pasted} {name}'"
            raise SourceUnreachable.at(f"topic {topic}", "does not tell what its source has done", remedy)
    included = taken(received, [i for i, u in enumerate(received.updates) if u.position <= told[u.source]])
    margin = int(project.config.global_txn_patience.total_seconds() * 1000)
    since = {
        inlet.source: _read_since(received, inlet.source) + margin if low else sources[inlet.source].logged_since()
        for inlet, low in zip(inlets, begins, strict=True)
    }
    return replace(included, updates=[_decided(update, since, held) for update in included.updates])


def _last_told(source: SqliteSource, position: int) -> int:
    """The position of the last message that a topic must have for the source to be known up to a position."""
    last = int(source.last_change())
    return min(position, last) if last > source.forgotten() else 0


def _read_since(received: Received, source: str) -> int:
    """From which time on, in milliseconds, all messages of a source's topic were read."""
    return min((update.timestamp for update in received.updates if update.source == source), default=FURTHEST)


def _decided(update: Update, since: Mapping[str, int], held: Mapping[str, int]) -> Update:
    """The update; not as a part of a transaction that was whole before, or of which parts may never have been told.

    ``since`` says from which time on the parts of each source were told and read.
    """
    if update.part_of is None:
        return update
    sources = [source for source in update.part_of.sources if source in since]
    was_whole = held.keys() >= set(sources) and update.position <= held[update.source]
    is_known = all(update.timestamp >= since[source] for source in sources)
    return update if is_known and not was_whole else update._replace(part_of=None)


def _behind(queue: UpdateQueue, wanted: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, int]:
    """The topics that have not been read far enough, and from where on to read them."""
    return {
        inlet.topic: inlet.offset
        for inlet in queue.inlets.values()
        if inlet.offset < ends[inlet.topic] or inlet.passed < wanted.get(inlet.source, 0)
    }
