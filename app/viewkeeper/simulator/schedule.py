"""Schedulers: who chooses what happens next. One draws by seed, one follows a clock, one tries everything."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from viewkeeper.simulator.base import BaseWorld
from viewkeeper.simulator.history import Commit, Crash, Delay, Deliver, Duplicate, Evaluate, Event, Return, Show
from viewkeeper.simulator.world import World


@dataclass(frozen=True)
class Faults:
    """How often faults happen, per event."""

    crash: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0


NONE = Faults()


def run_randomly(world: BaseWorld, rng: random.Random, faults: Faults = NONE) -> tuple[Event, ...]:
    """Draws possible events until none is left; gives those that happened.

    Each history has its own temper: how eager the sources commit and how slow each channel is against the others,
    so that some histories are nearly sequential and some as concurrent as can be.
    """
    eager = rng.choice((0.2, 1.0, 5.0))
    slow = {name: rng.choice((0.1, 1.0, 1.0, 5.0)) for name in world.workload.sources}
    happened: list[Event] = []
    while events := list(world.enabled()):
        event = rng.choices(events, [_weight(e, eager, slow) for e in events])[0]
        draw = rng.random()
        if draw < faults.crash:
            event = Crash()
        elif draw < faults.crash + faults.duplicate:
            again = Duplicate(rng.choice(world.workload.sources))
            event = again if world.possible(again) else event
        elif draw < faults.crash + faults.duplicate + faults.delay:
            event = Delay(rng.choice(world.workload.sources), rng.randint(2, 30))
        world.take(event)
        happened.append(event)
    world.settle()
    return tuple(happened)


def _weight(event: Event, eager: float, slow: dict[str, float]) -> float:
    if isinstance(event, Commit):
        return eager
    return slow[event.source] if isinstance(event, Deliver | Evaluate | Return | Show) else 1.0


def every_interleaving(make: Callable[[], World], crashes: int = 0) -> Iterator[tuple[World, tuple[Event, ...]]]:
    """Runs a small world through every order of messages that its view manager can see.

    A channel is FIFO, so all that the manager can see of a source is the order of its updates and answers; what a
    source does may as well happen just before its message arrives. So the choices are: which source speaks next, and
    whether it tells its next update or answers. ``crashes`` adds that many crashes at every possible moment.
    """
    untried: list[Steps] = [()]
    while untried:
        taken = untried.pop()
        world = make()
        for step in taken:
            _take(world, step)
        while choices := _choices_or_crash(world, taken, crashes):
            first, *others = choices
            untried += [(*taken, other) for other in reversed(others)]
            _take(world, first)
            taken = (*taken, first)
        world.settle()
        yield world, tuple(event for step in taken for event in step)


Steps = tuple[tuple[Event, ...], ...]


def _take(world: World, step: tuple[Event, ...]) -> None:
    for event in step:
        world.take(event)


def _choices_or_crash(world: World, taken: Steps, crashes: int) -> list[tuple[Event, ...]]:
    choices = list(_choices(world))
    if choices and sum(step == (Crash(),) for step in taken) < crashes:
        choices.append((Crash(),))
    return choices


def _choices(world: World) -> Iterator[tuple[Event, ...]]:
    commits = {
        source: event
        for event in world.enabled()
        if isinstance(event, Commit)
        for source in world.workload.transactions[event.index].parts
    }
    for name, source in world.sources.items():
        if source.channel:
            yield (Deliver(name),)
            continue
        if name in commits:
            yield (commits[name], Deliver(name))
        if source.inbox:
            yield (Evaluate(name), Deliver(name))
