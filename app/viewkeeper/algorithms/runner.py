"""Runs an algorithm's processes: who waits for which answer. Events go in, questions and action lists come out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from viewkeeper.algorithms.protocol import Algorithm, Answer, Install, Process, Query, Together, Update


@dataclass(frozen=True)
class Asked:
    """A question on its way; its answer is handed to ``Runner.answer`` with the same id."""

    id: int
    query: Query


Emitted = Asked | Install


@dataclass
class _Task:
    """A process; if others run for it, ``results`` waits for theirs."""

    process: Process
    parent: tuple[_Task, int] | None = None
    results: list[Any] = field(default_factory=list)
    missing: int = 0


@dataclass
class Runner:
    """One algorithm at work."""

    algorithm: Algorithm
    waiting: dict[int, _Task] = field(default_factory=dict)  # question id → who asked
    _questions: int = 0

    @property
    def idle(self) -> bool:
        """Whether no question is unanswered."""
        return not self.waiting

    def receive(self, update: Update) -> list[Emitted]:
        return list(self._run(_Task(self.algorithm.receive(update)), None))

    def answer(self, id: int, answer: Answer) -> list[Emitted]:
        return list(self._run(self.waiting.pop(id), answer))

    def flush(self) -> list[Emitted]:
        return list(self._run(_Task(self.algorithm.flush()), None))

    def _run(self, task: _Task, value: Any) -> Iterator[Emitted]:
        """Runs a process until it asks, waits for others, or ends."""
        while True:
            try:
                step = task.process.send(value)
            except StopIteration as end:
                yield from self._ended(task, end.value)
                return
            value = None
            if isinstance(step, Query):
                self._questions += 1
                self.waiting[self._questions] = task
                yield Asked(self._questions, step)
                return
            if isinstance(step, Together):
                yield from self._together(task, step)
                return
            yield step

    def _together(self, task: _Task, step: Together) -> Iterator[Emitted]:
        assert step.processes, "nothing to wait for"
        task.results, task.missing = [None] * len(step.processes), len(step.processes)
        for place, process in enumerate(step.processes):
            yield from self._run(_Task(process, (task, place)), None)

    def _ended(self, task: _Task, result: Any) -> Iterator[Emitted]:
        if task.parent is None:
            return
        parent, place = task.parent
        parent.results[place] = result
        parent.missing -= 1
        if parent.missing == 0:
            yield from self._run(parent, parent.results)
