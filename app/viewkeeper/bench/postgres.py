"""PostgreSQL through Debezium: a backlog that gathered while the job was down, and one change at a time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson
from confluent_kafka import Consumer, TopicPartition

from viewkeeper.bench.backlog import Shop
from viewkeeper.bench.job_process import JobProcess
from viewkeeper.bench.job_server import Backlog, Step
from viewkeeper.bench.latency import Change, Heard, Listener, Spread, batch_of, capturing, write_singly
from viewkeeper.bench.plan import Figures, Plan, per_update
from viewkeeper.bench.postgres_world import SETTINGS, PostgresWorld, end_of, make_postgres_world
from viewkeeper.bench.telling import Teller
from viewkeeper.bench.world import SOURCES, Write
from viewkeeper.local.postgres import PostgresServer
from viewkeeper.queue.consumer import bounds, reader

_PATIENCE = 600.0
_POLL = 0.05
_MESSAGES = 3
"""In the topic, of a transaction that changes one row: BEGIN, the event, END."""


def bench_postgres(plan: Plan, rows: int, folder: Path, bootstrap: str, teller: Teller) -> Figures:
    """Everything that is measured with PostgreSQL tables of that many rows."""
    with PostgresServer(folder / "server", settings=SETTINGS) as server:
        with teller.told(f"{rows:,} rows: three PostgreSQL databases"):
            world = make_postgres_world(folder / f"pg{rows}", bootstrap, rows, server)
        return _PostgresBench(plan, world, teller).run()


@dataclass(frozen=True)
class _PostgresBench:
    plan: Plan
    world: PostgresWorld
    teller: Teller

    def run(self) -> Figures:
        figures: Figures = {}
        shop = Shop(self.world.rows)
        with ExitStack() as stack:
            job = stack.enter_context(JobProcess(self.world.conf))
            with self.teller.told(f"{self.world.rows:,} rows: load of the view, start of Spark"):
                figures["pg_load_seconds"] = job.open()
            # Debezium starts on a backlog that is complete, so that nothing but itself sets its pace.
            before = _write(self.world, shop.uniform(self.plan.backlog))
            stack.enter_context(capturing(self.world))
            figures |= self._debezium(before)
            figures |= self._backlogs(job, shop)
            figures |= self._latency(job, shop)
        return figures

    # ---- backlogs

    def _debezium(self, sent: _Sent) -> Figures:
        with self.teller.told(f"{self.world.rows:,} rows: Debezium sends {self.plan.backlog:,} transactions"):
            delivered = sent.await_delivered()
        return {
            "pg_debezium_events": delivered.messages / delivered.seconds,
            "pg_debezium_transactions": delivered.messages / _MESSAGES / delivered.seconds,
        }

    def _backlogs(self, job: JobProcess, shop: Shop) -> Figures:
        """The first one waits in the topics already; it shows what a job costs that has just been started."""
        size = self.plan.backlog
        first = self._handled(job, _Sent.at_end(self.world), "the job's first batch")
        rounds = []
        for _ in range(self.plan.rounds):
            sent = _write(self.world, shop.uniform(size))
            sent.await_delivered()
            rounds.append(self._handled(job, sent, ""))
        figures = per_update("pg_first", size, [first.drained]) | per_update("pg", size, [r.drained for r in rounds])
        figures["pg_again_seconds"] = median(r.again for r in rounds)
        figures["pg_rows_ratio"] = max(r.answered / max(r.joined, 1) for r in rounds)
        figures["pg_rows_answered"] = median(r.answered for r in rounds)
        return figures

    def _handled(self, job: JobProcess, sent: _Sent, what: str) -> Backlog:
        begin, size = time.perf_counter(), self.plan.backlog
        backlog = job.backlog(sent.targets())
        seconds, sweep = backlog.drained.seconds, backlog.drained.steps["sweep"]
        speed = f"{seconds:.2f} s, {size / seconds:,.0f} updates/s, the sweep {size / sweep:,.0f}"
        self.teller.tell(begin, f"{self.world.rows:,} rows: {size:,} updates{', ' if what else ''}{what}: {speed}")
        return backlog

    # ---- one change

    def _latency(self, job: JobProcess, shop: Shop) -> Figures:
        plan, world = self.plan, self.world
        topics = [world.topic(source) for source in SOURCES]
        listener = Listener(world.bootstrap, [*topics, world.view_topic])
        try:
            with (
                job.keeping() as steps,
                self.teller.told(f"{world.rows:,} rows: {plan.changes} changes one by one"),
            ):
                changes = write_singly(world, listener, shop, plan.warm_up + plan.changes)[plan.warm_up :]
        finally:
            listener.close()
        barriers = [message for message in listener.heard if message.topic in topics]
        return latency_figures([split(change, batch_of(change, steps), barriers) for change in changes])


OURS = ("parse, number", "freeze", "drain", "sweep", "commit", "between")
THEIRS = ("debezium", "batch start", "barrier by debezium")


def split(change: Change, batch: Sequence[Step], heard: Sequence[Heard]) -> dict[str, float]:
    """Where one change spent its time from its commit to the cut: seconds by part.

    A drain waits for Debezium to deliver the barriers; what comes after the last of them is ours.
    """
    begin, end = batch[0].begin, batch[-1].end
    steps: defaultdict[str, float] = defaultdict(float)
    for step in batch:
        steps[step.name] += step.end - step.begin
    waited = sum(_waited(step, heard, begin) for step in batch if step.name == "drain")
    return {
        "debezium": change.sent.at - change.written.at,
        "batch start": begin - change.sent.at,
        "parse, number": steps["parse"] + steps["number"],
        "freeze": steps["freeze"],
        "barrier by debezium": waited,
        "drain": steps["drain"] - waited,
        "sweep": steps["sweep"],
        "commit": steps["commit"],
        "between": end - begin - sum(steps.values()),
        "cut": end - change.written.at,
    }


def _waited(drain: Step, heard: Sequence[Heard], since: float) -> float:
    """The part of a drain until the last of its barriers was in its topic."""
    barriers = [m for m in heard if end_of(m.content) is not None and since <= m.stamp + 1e-3 and m.stamp <= drain.end]
    last = max((m.at for m in barriers), default=drain.begin)
    return min(max(last, drain.begin), drain.end) - drain.begin


def latency_figures(samples: Sequence[Mapping[str, float]]) -> Figures:
    """Median and 95th percentile of the parts, of all that is ours and all that is not."""
    summed = [
        {**s, "ours": sum(s[part] for part in OURS), "theirs": sum(s[part] for part in THEIRS)} for s in samples
    ]  # fmt: skip
    figures: Figures = {}
    for part in summed[0]:
        spread = Spread.of([sample[part] for sample in summed])
        figures |= {f"pg_latency_{part}_median": spread.median, f"pg_latency_{part}_p95": spread.p95}
    return figures


# ---- what Debezium has delivered


@dataclass(frozen=True)
class _Delivered:
    """Messages that Debezium sent, and the seconds between the first and the last."""

    messages: int
    seconds: float


@dataclass(frozen=True)
class _Sent:
    """Transactions that were committed: where the topics will end, and where they ended before."""

    world: PostgresWorld
    before: Mapping[str, int]
    after: Mapping[str, int]

    @classmethod
    def at_end(cls, world: PostgresWorld) -> _Sent:
        ends = _ends(world)
        return cls(world, ends, ends)

    def await_delivered(self) -> _Delivered:
        """Waits without reading, which would cost Debezium its share of the machine."""
        deadline = time.monotonic() + _PATIENCE
        while any(end < self.after[topic] for topic, end in _ends(self.world).items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"Debezium did not deliver within {_PATIENCE:.0f} s")
            time.sleep(_POLL)
        stamps = [
            self._message(topic, offset)[1]
            for topic, end in self.after.items()
            if end > self.before[topic]
            for offset in (self.before[topic], end - 1)
        ]
        return _Delivered(sum(self.after.values()) - sum(self.before.values()), max(stamps) - min(stamps))

    def targets(self) -> dict[str, str]:
        """Per source the position of its last transaction."""
        found = {}
        for source in SOURCES:
            content, _ = self._message(self.world.topic(source), self.after[self.world.topic(source)] - 1)
            end = end_of(orjson.loads(content))
            assert end is not None, "a topic ends with the END of a transaction"
            found[source] = str(end[1])
        return found

    def _message(self, topic: str, offset: int) -> tuple[bytes, float]:
        """A message, and when it was sent."""
        consumer: Consumer = reader({"bootstrap.servers": self.world.bootstrap})
        try:
            consumer.assign([TopicPartition(topic, 0, offset)])
            message = consumer.poll(30)
            assert message is not None and not message.error(), f"{topic} holds no message {offset}"
            return message.value(), message.timestamp()[1] / 1e3
        finally:
            consumer.close()


def _write(world: PostgresWorld, writes: Sequence[Write]) -> _Sent:
    """Commits the writes, a transaction each."""
    before = _ends(world)
    after = dict(before)
    for source in SOURCES:
        own = [write for write in writes if write[0] == source]
        world.write_each_alone(source, own)
        after[world.topic(source)] += _MESSAGES * len(own)
    return _Sent(world, before, after)


def _ends(world: PostgresWorld) -> dict[str, int]:
    found = bounds({"bootstrap.servers": world.bootstrap}, [world.topic(source) for source in SOURCES])
    return {topic: high for topic, (_, high) in found.items()}
