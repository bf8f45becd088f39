"""The laboratory's speed: updates a second through simulated worlds of four sources, on one core."""

from __future__ import annotations

import random
import time

from viewkeeper.algorithms.sweep_sequential import SequentialSweep
from viewkeeper.simulator.base import BaseWorld
from viewkeeper.simulator.schedule import run_randomly
from viewkeeper.simulator.tagged import TaggedWorld
from viewkeeper.simulator.workload import Shape, random_workload
from viewkeeper.simulator.world import World

SOURCES = 4


def bench_simulator(updates: int, seed: int = 1) -> dict[str, float]:
    """Updates a second: the paper's SWEEP one update at a time, and the columnar one in batches."""
    shape = Shape(sources=SOURCES, relations=SOURCES, updates=updates, rows=30, values=30, keys=10 * updates)
    workload = random_workload(random.Random(seed), shape)
    return {
        "simulator_sequential": updates / _seconds(World(workload, SequentialSweep), seed),
        "simulator_columnar": updates / _seconds(TaggedWorld(workload), seed),
    }


def _seconds(world: BaseWorld, seed: int) -> float:
    begin = time.process_time()
    run_randomly(world, random.Random(seed))
    assert sum(len(install.updates) for _, install in world.installed) == len(world.workload.transactions)
    return time.process_time() - begin
