"""The parts of the managers one by one: action lists against stored views, questions together, runs, held batches."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import Bag, Row, TinyView, add
from viewkeeper.algebra.types import FLOAT, INTEGER, TEXT, Column, Relation
from viewkeeper.algebra.view import Hop, View
from viewkeeper.algorithms.protocol import (
    Action,
    Change,
    Insert,
    Install,
    KeyDelete,
    Op,
    Query,
    Replace,
    Term,
    Update,
    apply,
    evaluate,
)
from viewkeeper.algorithms.sweep import Sweep
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import SourceUnreachable
from viewkeeper.managers.contents import Labelled, signed_rows
from viewkeeper.managers.frozen_state import FrozenState
from viewkeeper.managers.keeping import Keeping, weakest
from viewkeeper.managers.pace import LONGEST, Pace
from viewkeeper.managers.stepwise import runs
from viewkeeper.messages import Answer, Ask
from viewkeeper.queue.native import read_message

from . import worlds
from .worlds import Did, World

R = Relation("s", "r", (Column("k", INTEGER), Column("x", FLOAT), Column("t", TEXT)), ("k",))
VIEW = parse_view("v", "SELECT r.k, r.x, r.t FROM s.r r", {("s", "r"): R})


def stored(view: View, bag: Bag) -> Iterator[pa.RecordBatch]:
    rows = list(bag.items())
    for some in (rows[:3], rows[3:]):
        arrays = [pa.array([row[i] for row, _ in some], f.type) for i, f in enumerate(view.schema)]
        schema = view.schema.append(pa.field(COUNT, pa.int64()))
        yield pa.RecordBatch.from_arrays([*arrays, pa.array([n for _, n in some], pa.int64())], schema=schema)


def changed(bag: Bag, *lists: tuple[Action, ...]) -> dict[int, Counter[Row]]:
    """What action lists, stored under 1, 2, …, change in a view that holds ``bag``."""
    installs = [Labelled(label, Install(frozenset(), actions)) for label, actions in enumerate(lists, 1)]
    return worlds.per_update(VIEW, [signed_rows(VIEW, installs, lambda: stored(VIEW, bag))])


# Action lists ----------------------------------------------------------------------------------------------------


def random_row(rng: random.Random) -> Row:
    return (rng.randint(1, 4), rng.choice((None, 0.0, 0.5)), rng.choice((None, "", "ä")))


def random_action(rng: random.Random) -> Action:
    match rng.randrange(5):
        case 0:
            return Insert(frozenset(random_row(rng) for _ in range(rng.randint(0, 3))))
        case 1:
            return KeyDelete((0,), (rng.randint(1, 4),))
        case 2:
            return KeyDelete((2, 0), (rng.choice((None, "", "ä")), rng.randint(1, 4)))
        case 3:
            return Change({random_row(rng): rng.choice((-2, -1, 1, 2)) for _ in range(2)}, clamped=True)
    return Change({random_row(rng): rng.choice((1, 2)) for _ in range(2)})


def test_agree_actions_on_a_stored_view_do_what_they_do_in_the_laboratory() -> None:
    for seed in range(300):
        agree(seed)


def agree(seed: int) -> None:
    rng = random.Random(seed)
    bag: Bag = {}
    for _ in range(rng.randint(0, 8)):
        add(bag, {random_row(rng): 1})
    lists = [tuple(random_action(rng) for _ in range(rng.randint(0, 3))) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.2:
        lists.append((Replace({random_row(rng): 1}), random_action(rng)))
    found, state = changed(bag, *lists), dict(bag)
    for label, actions in enumerate(lists, 1):
        delta = apply(state, actions)
        assert found.get(label, Counter()) == delta, f"seed {seed}, list {label}"
        add(state, delta)


def test_plain_changes_do_not_read_the_view() -> None:
    def unread() -> Iterator[pa.RecordBatch]:
        raise AssertionError("the view was read")

    install = Install(frozenset({7}), (Change({(1, 0.5, "a"): -1}),))
    table = signed_rows(VIEW, [Labelled(7, install)], unread)
    assert table.to_pylist() == [{"k": 1, "x": 0.5, "t": "a", "_count": -1, "_update": 7}]


def test_a_row_with_nan_is_the_row_with_nan_that_is_stored() -> None:
    assert changed({(1, math.inf - math.inf, None): 1}, (Insert(frozenset({(1, math.nan, None)})),)) == {}


def test_minus_zero_is_stored_as_zero_and_found_by_either() -> None:
    assert changed({(1, 0.0, None): 1}, (Insert(frozenset({(1, -0.0, None)})),)) == {}


# Questions -------------------------------------------------------------------------------------------------------

CHAIN = worlds.catalog(*(worlds.relation("s", name, "a b") for name in ("r1", "r2", "r3")))
CHAIN_VIEW = parse_view("v", "SELECT x.a, z.b FROM s.r1 x, s.r2 y, s.r3 z WHERE x.b = y.a AND y.b = z.a", CHAIN)
STATE: dict[tuple[str, str], Counter[Row]] = {
    ("s", "r1"): Counter({(1, 1): 1, (2, 1): 2}),
    ("s", "r2"): Counter({(1, 1): 1, (1, 2): 1, (3, 3): 1}),
    ("s", "r3"): Counter({(1, 5): 1, (2, 6): 3, (None, 7): 1}),
}


def frozen_chain(asks: list[Ask], change: Counter[Row]) -> FrozenState:
    """As of update 1, which changed r2, and which the answers do not contain yet."""
    world = World(CHAIN, STATE, [Did("s", {"r2": change})])

    def ask(ask: Ask) -> Answer:
        asks.append(ask)
        return world.answer(ask, ())

    columns = dict.fromkeys(CHAIN, ("a", "b"))
    tiny = TinyView(CHAIN_VIEW, columns, dict.fromkeys(columns, ()))
    return FrozenState(tiny, Sweep(CHAIN_VIEW, world.queue([1])), 1, ask)


def test_questions_asked_together_are_one_look_up_a_relation() -> None:
    asks: list[Ask] = []
    state = frozen_chain(asks, Counter({(3, 3): -1, (4, 2): 1}))
    tiny, hops = state.tiny, CHAIN_VIEW.hops(0)
    starts = [tiny.start(0, {(value, key): 1}) for value, key in ((7, 1), (8, 3), (9, 4))]
    queries = [Query("s", (Term(part, hops, each=value > 0),)) for value, part in enumerate(starts)]
    now = {**STATE, ("s", "r2"): Counter({(1, 1): 1, (1, 2): 1, (4, 2): 1})}

    def matching(hop: Hop, key: Row) -> list[tuple[Row, int]]:
        rows = now[("s", hop.occurrence.relation)].items()
        return [(row, n) for row, n in rows if tiny.key_of(hop)(row) == key]

    assert state.answers(queries) == [evaluate(tiny, query, matching) for query in queries]
    assert [(a.relation, a.keys.num_rows if a.keys else None) for a in asks] == [("r2", 3), ("r3", 2)]
    state.answers(queries)
    assert len(asks) == 2, "what was found is not asked for again"


def test_a_hop_without_a_key_asks_for_everything() -> None:
    asks: list[Ask] = []
    state = frozen_chain(asks, Counter({(1, 1): -1}))
    everything = Hop(CHAIN_VIEW.occurrences[1], (), (), True, ())
    (((part,),),) = state.answers([Query("s", (Term({state.tiny.nothing: 1}, (everything,)),))])
    assert {c[1]: n for c, n in part.items()} == {(1, 2): 1, (3, 3): 1}
    assert asks[0].keys is None


# Runs, paces, levels ---------------------------------------------------------------------------------------------


def test_a_run_is_as_long_as_what_changes_in_it() -> None:
    op = Op("r", (1,), 1)
    updates = [Update(k, "a", str(k), ops) for k, ops in enumerate([(), (op,), (op, op, op), (op,), ()], 1)]
    assert [[u.number for u in run] for run in runs(updates, 3)] == [[1, 2, 3], [4, 5]]
    assert list(runs([], 1)) == []


def test_a_run_of_complete_n_ends_where_the_view_is_shown() -> None:
    updates = [Update(k, "a", str(k), ()) for k in range(4, 15)]
    assert [[u.number for u in run] for run in runs(updates, 2, 5)] == [[4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 14]]


def test_a_manager_works_at_once_if_it_owes_something() -> None:
    pace = Pace(Keeping(), refreshed=0.0)
    assert pace.due(1, now=0.0) and not pace.due(0, now=1e9)


def test_a_refresh_waits_for_updates_or_for_time_but_never_for_ever() -> None:
    counted = Pace(Keeping("refresh", every=5), refreshed=100.0)
    assert not counted.due(4, now=101.0) and counted.due(5, now=101.0)
    assert counted.due(1, now=100.0 + LONGEST) and not counted.due(0, now=100.0 + LONGEST)
    timed = Pace(Keeping("refresh", every=timedelta(seconds=30)), refreshed=100.0)
    assert not timed.due(10**6, now=129.0) and timed.due(1, now=130.0)
    timed.succeeded(now=131.0)
    assert not timed.due(1, now=160.0)


def test_a_manager_that_failed_waits_longer_each_time_and_starts_afresh_once_it_succeeds() -> None:
    pace, error = Pace(Keeping(), refreshed=0.0), SourceUnreachable.at("source shop", "is away")
    pauses = [pace.failed(error, now=0.0) for _ in range(8)]
    assert pauses[:3] == [0.2, 0.4, 0.8] and pauses[-1] == 10.0
    assert pace.error is error and not pace.due(1, now=9.0) and pace.due(1, now=10.0)
    pace.succeeded(now=10.0)
    assert pace.error is None and pace.failed(error, now=11.0) == 0.2


def test_a_refresh_that_no_cut_holds_is_as_due_as_it_was() -> None:
    pace = Pace(Keeping("refresh", every=timedelta(hours=1)), refreshed=0.0)
    pace.succeeded(now=4000.0)
    pace.lost()
    assert pace.due(1, now=4001.0)
    pace.succeeded(now=4001.0)
    pace.published()
    pace.lost()
    assert not pace.due(1, now=4002.0)


def test_a_group_promises_what_its_weakest_view_does() -> None:
    kinds = {name: Keeping(name) for name in ("sweep", "complete_n", "nested_sweep", "strobe", "convergent")}
    levels = [kinds[name].level for name in kinds]
    assert levels == [Level.COMPLETE, Level.COMPLETE_N, Level.STRONG, Level.CONVERGENT, Level.INCONSISTENT]
    assert weakest({name: kinds[name] for name in ("sweep", "complete_n", "nested_sweep")}) is Level.STRONG
    assert weakest({}) is Level.COMPLETE


def test_the_conventional_algorithm_needs_keys_to_delete_by_key() -> None:
    keyless = TinyView.of(CHAIN_VIEW, CHAIN)
    assert Keeping("convergent").problems(keyless) == []
    assert Keeping("convergent", {"keyed": True}).problems(keyless)


def test_a_message_tells_the_global_transaction_it_is_part_of() -> None:
    head = b'{"source": "shop", "txn": "8", "position": 8, "changes": [], "global_txn": '
    told = read_message(head + b'{"id": "g7", "sources": ["shop", "crm"]}}', "shop", ()).part_of
    assert told == ("g7", frozenset({"shop", "crm"}))
    assert read_message(head + b"null}", "shop", ()).part_of is None
