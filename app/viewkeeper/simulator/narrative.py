"""What happened in a world as a list of steps: each at one place, in words, with the step that sent what arrives.

The lanes of a space-time diagram are the sources and the warehouse; ``diagram`` and ``diagram_svg`` draw the steps.
Channels are FIFO, so what arrives is what was sent first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from viewkeeper.algorithms.protocol import Compensation, Install, Update
from viewkeeper.algorithms.runner import Asked
from viewkeeper.messages import Ask
from viewkeeper.simulator.base import BaseWorld, Happened, Message
from viewkeeper.simulator.evidence import Fault
from viewkeeper.simulator.history import Transaction
from viewkeeper.simulator.wording import bag_text, ops_text, part_text, query_text, taken_text, updates_text
from viewkeeper.simulator.world import Reply


@dataclass(frozen=True)
class Step:
    """One thing that happened. ``source`` is whose, if any; ``sent`` the step that sent what arrives here.

    ``at_source`` steps lie on the source's lane, all others on the warehouse's. An install carries the index of the
    view state it made, and ``wrong`` says what is wrong with that state.
    """

    index: int
    time: float
    kind: str
    source: str | None
    text: str
    at_source: bool = False
    sent: int | None = None
    state: int | None = None
    wrong: str = ""


AT_SOURCE = frozenset({"commit", "evaluate", "show"})


def narrate(world: BaseWorld, fault: Fault | None = None) -> list[Step]:
    """The steps of a world, its first view state included."""
    return list(_Narrator(world, fault).steps())


@dataclass(frozen=True)
class _Under:
    """A question or an answer that is under way: its name, and the step that sent it."""

    name: str
    step: int


class _Narrator:
    def __init__(self, world: BaseWorld, fault: Fault | None) -> None:
        self.world, self.fault = world, fault
        self.questions = 0
        self.state = 0
        self.asked: dict[str, deque[_Under]] = {}
        self.answers: dict[str, deque[_Under]] = {}
        self.barriers: dict[str, deque[_Under]] = {}
        self.commits: dict[tuple[str, str], int] = {}
        self._nothing_under_way()

    def _nothing_under_way(self) -> None:
        for channels in (self.asked, self.answers, self.barriers):
            channels.update({name: deque() for name in self.world.workload.sources})

    def steps(self) -> Iterator[Step]:
        first = f"view = {bag_text(self.world.states[0])}"
        yield Step(0, 0.0, "begin", None, first, state=0, wrong=self._wrong(0))
        for index, happened in enumerate(self.world.log, 1):
            text, sent = getattr(self, f"_{happened.kind}")(index, happened)
            at_source = happened.kind in AT_SOURCE
            state = self.state if happened.kind == "install" else None
            wrong = "" if state is None else self._wrong(state)
            yield Step(index, happened.time, happened.kind, happened.source, text, at_source, sent, state, wrong)
        if self.fault is not None and self.fault.state is None:
            yield Step(len(self.world.log) + 1, self.world.time + 1, "end", None, "the end", wrong=self.fault.words)

    def _wrong(self, state: int) -> str:
        return self.fault.words if self.fault is not None and self.fault.state == state else ""

    # One method a kind of happening: its words, and the step that sent what arrives with it ----------------------

    def _commit(self, index: int, happened: Happened) -> tuple[str, int | None]:
        transaction: Transaction = happened.what
        source = _place(happened)
        self.commits[(source, transaction.id)] = index
        return f"{transaction.id}: {ops_text(transaction.parts[source])}", None

    def _update(self, index: int, happened: Happened) -> tuple[str, int | None]:
        update: Update = happened.what
        part = f", part of {update.txn}" if update.parts else ""
        return f"U{update.number} = {ops_text(update.ops)}{part}", self.commits[(update.source, update.txn)]

    def _duplicate(self, index: int, happened: Happened) -> tuple[str, int | None]:
        message: Message = happened.what
        origin = self.commits[(message.source, message.transaction.id)]
        return f"{message.transaction.id} arrives again and is dropped", origin

    def _delay(self, index: int, happened: Happened) -> tuple[str, int | None]:
        return f"nothing arrives from {happened.source} for {happened.what:,} events", None

    def _send(self, index: int, happened: Happened) -> tuple[str, int | None]:
        self.questions += 1
        name = f"Q{self.questions}"
        self.asked[_place(happened)].append(_Under(name, index))
        return f"{name} to {happened.source}: {_question_text(happened.what)}", None

    def _freeze(self, index: int, happened: Happened) -> tuple[str, int | None]:
        for questions in self.asked.values():
            questions.append(_Under("", index))
        return f"asks every source for a snapshot, for {updates_text(happened.what)}", None

    def _evaluate(self, index: int, happened: Happened) -> tuple[str, int | None]:
        source = _place(happened)
        under = self.asked[source].popleft()
        self.answers[source].append(_Under(under.name, index))
        if under.name:
            return f"answers {under.name}", under.step
        self.barriers[source].append(_Under("", index))
        return "takes its snapshot, writes the barrier", under.step

    def _answer(self, index: int, happened: Happened) -> tuple[str, int | None]:
        under = self.answers[_place(happened)].popleft()
        if not under.name:
            return f"the snapshot of {happened.source} is there", under.step
        return f"A{under.name[1:]} = {_answer_text(happened.what)}", under.step

    def _barrier(self, index: int, happened: Happened) -> tuple[str, int | None]:
        waiting = self.barriers[_place(happened)]
        return "the barrier comes out", waiting.popleft().step if waiting else None

    def _show(self, index: int, happened: Happened) -> tuple[str, int | None]:
        ids = [transaction.id for transaction, _ in self.world.workload.at(_place(happened))]
        return f"{ids[happened.what]} becomes visible", None

    def _compensate(self, index: int, happened: Happened) -> tuple[str, int | None]:
        found: Compensation | range = happened.what
        if isinstance(found, range):
            return f"compensates what {happened.source} answered, for the batch of {updates_text(found)}", None
        because = f", because of {updates_text(found.because)}" if found.because else ""
        return f"{taken_text(found.error)}{because}", None

    def _install(self, index: int, happened: Happened) -> tuple[str, int | None]:
        install, view = happened.what
        assert isinstance(install, Install)
        self.state += 1
        which = f"  with {updates_text(install.updates)}" if install.updates else ""
        return f"view = {bag_text(view)}{which}", None

    def _crash(self, index: int, happened: Happened) -> tuple[str, int | None]:
        self._nothing_under_way()
        return "crash: the manager starts again, nothing is under way", None


def _place(happened: Happened) -> str:
    assert happened.source is not None, f"{happened.kind} happens at a source"
    return happened.source


def _question_text(asked: Any) -> str:
    if isinstance(asked, Asked):
        return query_text(asked.query)
    assert isinstance(asked, Ask)
    if asked.keys is None:
        return asked.relation
    keys = {tuple(values): 1 for values in zip(*(c.to_pylist() for c in asked.keys.columns), strict=True)}
    return f"{asked.relation} where ({','.join(asked.key)}) in {bag_text(keys)}"


def _answer_text(answer: Any) -> str:
    if isinstance(answer, Reply):
        return " and ".join(" then ".join(map(part_text, parts)) for parts in answer.answer)
    *columns, counts = (column.to_pylist() for column in answer.rows.columns)
    return bag_text({row: n for *values, n in zip(*columns, counts, strict=True) for row in [tuple(values)]})
