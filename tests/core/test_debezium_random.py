"""Random histories, cut and repeated as connectors do that are killed: each transaction comes out once, and whole."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scale import scaled
from viewkeeper.messages import Reached
from viewkeeper.queue import update_queue
from viewkeeper.queue.debezium import DebeziumReader
from viewkeeper.queue.debezium_transaction import Transaction
from viewkeeper.queue.update_queue import UpdateQueue

from .debezium_worlds import Committed, Did, Event, came_out, compact, inlet, messages, wrapped

CAPTURED = ("ful", "ord")


@dataclass
class History:
    """Committed transactions in commit order, and the topic that a connector made of them."""

    committed: list[Committed]
    topic: list[bytes | None]
    position: Reached
    expected: list[Did]


class Writer:
    """Makes up a source's transactions and the connector's troubles."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.lsn = 1000
        self.barriers = 0

    def history(self) -> History:
        count = self.rng.randint(1, 12)
        xids = self.rng.sample(range(700, 730), count)  # not in commit order
        committed: list[Committed] = []
        for xid in xids:
            events = self.events()
            follows = committed[-1].end if committed else None
            committed.append(Committed(xid, self.later(), events, follows))
        position, loaded = self.load(committed)
        expected = [did for c in committed if c.xid not in loaded and (did := c.did(CAPTURED)) is not None]
        return History(committed, self.topic(committed), position, expected)

    def later(self) -> int:
        self.lsn += self.rng.randint(1, 50)
        return self.lsn

    def events(self) -> list[Event]:
        """What one transaction does; row LSNs may lie before the END of an earlier transaction."""
        events: list[Event] = []
        for _ in range(self.rng.choice([0, 1, 1, 2, 3, 6])):
            lsn = max(1, self.later() - self.rng.choice([0, 0, 300]))
            events += self.event(lsn)
        return events

    def event(self, lsn: int) -> list[Event]:
        kind, table = self.rng.randint(0, 9), self.rng.choice(["ful", "ord", "acc", "elsewhere"])
        if kind == 0:
            self.barriers += 1
            return [Event("m", lsn=lsn, content=f"token-{self.barriers}")]
        if kind == 1:
            return [Event("t", each, lsn=lsn) for each in self.rng.sample(["ful", "ord", "acc"], 2)]
        if kind == 2:  # a key changed
            return [
                Event("d", table, before=self.row(table), lsn=lsn),
                Event("c", table, after=self.row(table), lsn=lsn),
            ]
        schema = "private" if kind == 3 else "public"
        op = self.rng.choice("cud")
        before = None if op == "c" else self.row(table)
        after = None if op == "d" else self.row(table)
        return [Event(op, table, before, after, lsn, schema)]

    def row(self, table: str) -> dict[str, Any]:
        if table == "ful":
            return {"id": self.rng.randint(1, 5), "a": self.rng.choice(["x", None]), "b": str(self.rng.random())}
        return {"oid": self.rng.randint(1, 5), "line": self.rng.randint(1, 5), "qty": self.rng.choice([1, None])}

    def load(self, committed: list[Committed]) -> tuple[Reached, set[int]]:
        """Perhaps the views were loaded after some of this: from a snapshot that misses some that were logged."""
        known = self.rng.randint(0, len(committed)) if self.rng.random() < 0.5 else 0
        if not known:
            return Reached(0), set()
        logged = [c.xid for c in committed[:known]]
        seen = {xid for xid in logged if self.rng.random() < 0.7}
        xmax = max(seen, default=699) + 1
        running = [xid for xid in range(700, xmax) if xid not in seen]
        snapshot = f"{min([*running, xmax])}:{xmax}:{','.join(map(str, running))}"
        return Reached(0, committed[known - 1].end, snapshot), seen

    def topic(self, committed: list[Committed]) -> list[bytes | None]:
        """The messages, sent again from any earlier point after every kill, and other messages between them."""
        stream = [message for each in committed for message in each.messages()]
        topic: list[bytes | None] = []
        at = 0
        while at < len(stream):
            end = min(len(stream), at + self.rng.randint(1, 25))
            for message in stream[at:end]:
                topic += self.noise()
                topic.append(wrapped(message) if self.rng.random() < 0.05 else message)
            at = end
            if self.rng.random() < 0.5:
                at = max(0, end - self.rng.randint(0, self.rng.choice([3, 10, 60])))
        return topic

    def noise(self) -> list[bytes | None]:
        if self.rng.random() > 0.1:
            return []
        source = {"schema": "public", "table": "ful", "lsn": 5, "txId": None, "snapshot": "true"}
        row = {"id": 1, "a": None, "b": "loaded"}
        snapshot = {"op": "r", "before": None, "after": row, "source": source, "transaction": None}
        return [self.rng.choice([None, wrapped(None), compact({"ts_ms": 5}), compact(snapshot)])]


class Play:
    """A job that reads such a topic in batches, makes cuts, and is killed."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.history = Writer(self.rng).history()
        self.by_end = {c.end: c.did(CAPTURED) for c in self.history.committed}
        self.cut: tuple[dict[str, str], dict[str, int]] = ({"shop": str(self.history.position)}, {"shop": 0})
        self.came: list[Did] = []
        self.told: list[tuple[int, int]] = []  # per update its END and first message
        self.cut_length = 0

    def run(self) -> list[Did]:
        """Everything that came out, as the cuts have it."""
        queue = UpdateQueue([inlet(self.history.position)])
        self.unsettled: set[int] = set()
        self.again: list[int] = []
        end = len(self.history.topic)
        while queue.inlets["shop.updates"].offset < end or self.cut_length < len(self.came):
            self.batch(queue)
            if self.rng.random() < 0.5 or queue.inlets["shop.updates"].offset == end:
                self.commit(queue)
            if self.rng.random() < 0.2:
                queue = self.restarted(queue)
        self.check_barriers(queue)
        return self.came

    def batch(self, queue: UpdateQueue) -> None:
        """Some messages, perhaps with others before them that were read already."""
        offset = queue.inlets["shop.updates"].offset
        first = max(0, offset - self.rng.choice([0, 0, 5]))
        values = self.history.topic[first : offset + self.rng.randint(0, 30)]
        received = queue.receive(messages(*values, first=first))
        assert not received.rejected, received.rejected
        self.came += came_out(received)
        self.told += [(update.position, update.first_offset) for update in received.updates]
        if received.again:
            for did in came_out(received.again):
                assert did == self.by_end[did.end], "a repetition is told as it was"
                assert did.end <= queue.inlets["shop.updates"].last
                self.again.append(did.end)
            assert len(self.again) == len(set(self.again)), "a repetition is told once"

    def commit(self, queue: UpdateQueue) -> None:
        """A cut; the next snapshots may not include its last updates, so a restart must meet them again."""
        recent = self.told[-self.rng.randint(0, 3) :] if self.told and self.rng.random() < 0.7 else []
        self.unsettled = {end for end, _ in recent}
        offset = min([queue.offsets()["shop"], *(first for _, first in recent)])
        self.cut = (queue.positions(), {"shop": offset})
        self.cut_length = len(self.came)

    def restarted(self, queue: UpdateQueue) -> UpdateQueue:
        """The job is killed, or goes back; what came after the cut is as if it never came."""
        del self.came[self.cut_length :], self.told[self.cut_length :]
        target = queue.inlets["shop.updates"].offset
        positions, offsets = self.cut
        if self.rng.random() < 0.5:
            queue.rewind(positions, offsets)
        else:
            queue = UpdateQueue([inlet(Reached.parse(positions["shop"]), offsets["shop"])])
        unsettled, self.again = set(self.unsettled), []
        while queue.inlets["shop.updates"].offset < target:
            self.batch(queue)
        assert unsettled <= set(self.again), "what snapshots may not include yet is told again"
        return queue

    def check_barriers(self, queue: UpdateQueue) -> None:
        queue.rewind({"shop": "0"}, {"shop": 0})
        queue.receive(messages(*self.history.topic))
        for each in self.history.committed:
            for event in each.events:
                assert event.op != "m" or queue.passed_barrier("shop", event.content)


@given(st.integers(0, 10**9))
@settings(max_examples=scaled(60, 1500), deadline=None)
def test_oracle_every_transaction_comes_out_once_in_commit_order_and_whole(seed: int) -> None:
    play = Play(seed)
    assert play.run() == play.history.expected


def without_one_message(seed: int) -> None:
    """One event is taken out of everything the connector sent: all before its transaction comes out, nothing else."""
    rng = random.Random(seed)
    history = Writer(rng).history()
    candidates = [(c, n) for c in history.committed for n in range(1, len(c.events) + 1)]
    if not candidates:
        return
    victim, number = rng.choice(candidates)
    gone = (victim.event(number), wrapped(victim.event(number)))
    topic = [value for value in history.topic if value not in gone]
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(*topic))
    before = [c.did(CAPTURED) for c in history.committed if c.end < victim.end]
    assert came_out(received) == [did for did in before if did is not None]
    assert queue.inlets["shop.updates"].last < victim.end
    assert f"transaction {victim.xid}" in received.rejected[0].reason


@given(st.integers(0, 10**9))
@settings(max_examples=scaled(40, 1000), deadline=None)
def test_oracle_a_transaction_with_a_message_missing_never_comes_out(seed: int) -> None:
    without_one_message(seed)


# -- mistakes that people make


class OrderedByXid(DebeziumReader):
    """Takes a transaction for a repetition if its xid is not past the last."""

    _last_xid = 0

    def _is_new(self, marker: Any) -> bool:
        new = int(marker.xid) > self._last_xid
        self._last_xid = max(self._last_xid, int(marker.xid))
        return new


class KnownByXid(DebeziumReader):
    """Takes a transaction for a repetition if its xid was seen: forgotten by a restart."""

    def __init__(self, inlet: Any):
        super().__init__(inlet)
        self._seen: set[str] = set()

    def _is_new(self, marker: Any) -> bool:
        new = marker.xid not in self._seen
        self._seen.add(marker.xid)
        return new


class LoadByLsn(DebeziumReader):
    """Takes everything that was logged before the load for loaded."""

    def _is_loaded(self, xid: str) -> bool:
        return True


def incomplete(self: Transaction, events: int) -> str | None:
    return None


def uncounted(self: Transaction, order: int, lsn: int) -> bool:
    """Takes every event for a new one."""
    self.lsns.append(lsn)
    return True


def caught() -> bool:
    """Whether the random tests would fail."""
    for seed in range(60):
        try:
            play = Play(seed)
            assert play.run() == play.history.expected
            without_one_message(seed)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("mistake", [OrderedByXid, KnownByXid, LoadByLsn])
def test_a_wrong_idea_of_repetition_is_caught(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(update_queue._FORMATS, "debezium", mistake)
    assert caught()


@pytest.mark.parametrize(("method", "wrong"), [("fault", incomplete), ("counts", uncounted)])
def test_a_wrong_idea_of_wholeness_is_caught(method: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transaction, method, wrong)
    assert caught()


def test_the_right_ideas_are_not_caught() -> None:
    assert not caught()
