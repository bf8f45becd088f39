"""``viewkeeper lab run``: one random history, step by step."""

from __future__ import annotations

import argparse
import random

from viewkeeper.commands.lab.choosing import chosen_shape, chosen_subject
from viewkeeper.commands.lab.showing import Exhibit, console, keep, require_writable
from viewkeeper.simulator.history import History
from viewkeeper.simulator.laboratory import make
from viewkeeper.simulator.schedule import Faults, run_randomly
from viewkeeper.simulator.workload import random_workload


def run(args: argparse.Namespace) -> int:
    """Draws a history by seed and shows it."""
    subject = chosen_subject("lab run", args.algorithm, args.option)
    shape = chosen_shape("lab run", subject, args)
    require_writable(args.save, args.svg)
    rng = random.Random(args.seed)
    workload = random_workload(rng, shape)
    world = make(subject.name, workload, subject.options)
    events = run_randomly(world, rng, Faults(args.crash, args.duplicate, args.delay))
    exhibit = Exhibit(subject, History(workload, subject.name, subject.options, events, args.seed), world)
    out = console()
    exhibit.show_as(out, shape.scenario)
    keep(exhibit, args.save, args.svg, out)
    return 0
