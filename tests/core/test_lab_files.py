"""Saved histories: what is written comes back, and what is damaged is refused with the place and the reason."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.errors import UsageError
from viewkeeper.simulator.examples import EXAMPLES
from viewkeeper.simulator.files import dumps, loads
from viewkeeper.simulator.history import History
from viewkeeper.simulator.laboratory import Subject, fitting, make, replayed, subjects
from viewkeeper.simulator.schedule import Faults, run_randomly
from viewkeeper.simulator.workload import Shape, random_workload

EXAMPLE = EXAMPLES["strobe-1996-example-1"]


def drawn(subject: Subject, seed: int) -> tuple[History, Any]:
    rng = random.Random(seed)
    scenario = Scenario.SINGLE if subject.name == "eca" else rng.choice(list(Scenario))
    shape = fitting(subject, Shape(3, 3, 5, scenario, keyed=seed % 2 == 0))
    assert shape is not None
    workload = random_workload(rng, shape)
    world = make(subject.name, workload, subject.options)
    events = run_randomly(world, rng, Faults(0.05, 0.05, 0.05))
    return History(workload, subject.name, subject.options, events, seed), world


@pytest.mark.parametrize("subject", subjects(), ids=str)
def test_a_saved_history_comes_back_and_replays_to_the_same_states(subject: Subject) -> None:
    for seed in range(6):
        history, world = drawn(subject, seed)
        again = loads(dumps(history), "saved")
        assert again == history, f"seed {seed}"
        assert replayed(again).states == world.states, f"seed {seed}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_can_be_saved(name: str) -> None:
    assert loads(dumps(EXAMPLES[name]), name) == EXAMPLES[name]


def test_a_saved_history_is_a_few_short_lines() -> None:
    lines = dumps(EXAMPLE).splitlines()
    assert len(lines) < 30
    assert '  {"id": "U1", "parts": {"y": [["insert", "r2", [2, 3]]]}},' in lines


def test_sources_are_in_the_order_in_which_people_count() -> None:
    workload = random_workload(random.Random(1), Shape(11, 11, 0))
    assert workload.sources == tuple(f"s{i}" for i in range(1, 12))


def damaged(**changes: Any) -> str:
    """The example with some of its fields replaced; None takes one out."""
    data = json.loads(dumps(EXAMPLE)) | changes
    return json.dumps({key: value for key, value in data.items() if value is not None})


RELATIONS = json.loads(dumps(EXAMPLE))["relations"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "f: line 1, column 1: is not JSON: expecting value; "),
        ('{"format":\n "viewkeeper', "f: line 2, column 2: is not JSON: unterminated string starting at; "),
        ("[]", "f: format: is not 'viewkeeper history', so this is no saved history; "),
        (damaged(version=None), "f: version: is missing; "),
        (damaged(version=2), "f: version: is 2, and only 1 can be read; "),
        (damaged(sql=None), "f: sql: is missing; "),
        (damaged(colour="red"), "f: colour: is not known; "),
        (damaged(transactions={}), "f: transactions: must be a list; "),
        (damaged(relations=[]), "f: relations: is empty; "),
        (damaged(relations=RELATIONS * 2), "f: relations: one of them is there twice; leave one out"),
        (damaged(relations=[RELATIONS[0] | {"key": ["Z"]}]), "f: relations[0].key: Z is no column of r1"),
        (damaged(initial={"x.r9": []}), "f: initial.x.r9: there is no such relation; use x.r1 or y.r2 or z.r3"),
        (damaged(initial={"x.r1": [[1]]}), "f: initial.x.r1[0]: is no row of r1(A, B)"),
        (damaged(initial={"x.r1": [[1, "a"]]}), 'f: initial.x.r1[0]: B is "a", which is no integer'),
        (damaged(initial={"x.r1": [[1, 2], [1, 3]]}), "f: initial: cannot happen: it deletes a row"),
        (
            damaged(transactions=[{"id": "t", "parts": {"q": []}}]),
            "f: transactions[0].parts.q: there is no such source",
        ),
        (damaged(transactions=[{"id": "t", "parts": {"x": []}}]), "f: transactions[0].parts.x: is empty; "),
        (
            damaged(transactions=[{"id": "t", "parts": {"x": [["upsert", "r1", [1, 2]]]}}]),
            'f: transactions[0].parts.x[0]: is no change: ["upsert", "r1", [1, 2]]; ',
        ),
        (
            damaged(transactions=[{"id": "t", "parts": {"x": [["insert", "r2", [1, 2]]]}}]),
            'f: transactions[0].parts.x[0]: x has no relation "r2"',
        ),
        (
            damaged(transactions=[{"id": "t", "parts": {"x": [["delete", "r1", [9, 9]]]}}], events=[]),
            "f: transactions[0]: cannot happen: it deletes a row that is not there, or adds a key that is",
        ),
        (
            damaged(transactions=[{"id": "t", "parts": {"y": [["insert", "r2", [k, 3]]]}} for k in (1, 2)]),
            "f: transactions: two of them have the same id; give each its own",
        ),
        (damaged(sql="SELECT"), "f: sql: "),
        (damaged(events=["commit 7"]), "f: events[0]: 'commit 7' is no event of this history; use commit NUMBER"),
        (damaged(events=["crash", "deliver q"]), "f: events[1]: 'deliver q' is no event of this history"),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        loads(text, "f")
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(said)
