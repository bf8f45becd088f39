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
from viewkeeper.algorithms.registry import ALGORITHMS
from viewkeeper.algorithms.sweep import Sweep
from viewkeeper.consistency.levels import Level
from viewkeeper.job.hold import LONGEST, MOST, Hold
from viewkeeper.managers.contents import Labelled, signed_rows
from viewkeeper.managers.frozen_state import FrozenState
from viewkeeper.managers.keeping import Keeping, weakest
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


# Runs, holds, levels ---------------------------------------------------------------------------------------------


def test_a_run_ends_only_where_no_global_transaction_is_open() -> None:
    parts = frozenset({"a", "b"})
    updates = [
        Update(1, "a", "1", ()),
        Update(2, "a", "g", (), parts),
        Update(3, "a", "2", ()),
        Update(4, "b", "g", (), parts),
        Update(5, "b", "3", ()),
    ]
    assert [[u.number for u in run] for run in runs(updates, 2)] == [[1, 2, 3, 4], [5]]
    assert [[u.number for u in run] for run in runs(updates, 1)] == [[1], [2, 3, 4], [5]]
    assert list(runs([], 1)) == []


def test_a_run_is_as_long_as_what_changes_in_it() -> None:
    op = Op("r", (1,), 1)
    updates = [Update(k, "a", str(k), ops) for k, ops in enumerate([(), (op,), (op, op, op), (op,), ()], 1)]
    assert [[u.number for u in run] for run in runs(updates, 3)] == [[1, 2, 3], [4, 5]]


def messages(count: int) -> pa.Table:
    return pa.table({"offset": list(range(count))})


def test_nothing_is_held_unless_a_view_is_refreshed_now_and_then() -> None:
    assert Hold.of([Keeping(), Keeping("strobe")]) is None


def test_the_most_frequent_refresh_decides() -> None:
    kinds = [Keeping("refresh", every=7), Keeping("refresh", every=5), Keeping("refresh", every=timedelta(hours=1))]
    hold = Hold.of(kinds)
    assert hold is not None and (hold.messages, hold.seconds) == (5, 3600)
    hold = Hold.of([Keeping("refresh", every=10 * MOST)])
    assert hold is not None and hold.messages == MOST


def test_messages_are_held_until_there_are_enough_and_given_all_at_once() -> None:
    hold = Hold(messages=5)
    assert not hold.due
    hold.add(messages(3), {"t": 3, "u": 1})
    hold.add(messages(0), {"u": 9})
    assert not hold.due
    hold.add(messages(2), {"t": 5})
    assert hold.due
    taken, ends = hold.take()
    assert (len(taken), ends) == (5, {"t": 5, "u": 9})
    assert not hold.due


def test_a_refresh_that_waits_for_updates_does_not_wait_for_ever() -> None:
    keeping = [Keeping("refresh", every=10)]
    fresh, old = Hold.of(keeping), Hold.of(keeping, age=LONGEST)
    assert fresh is not None and old is not None
    for hold in (fresh, old):
        hold.add(messages(1), {"t": 1})
    assert old.due and not fresh.due, "the last refresh decides, whoever made it"


def test_time_makes_a_refresh_due_only_if_something_waits() -> None:
    hold = Hold(seconds=0.0)
    assert not hold.due
    hold.add(messages(0), {"t": 3})
    assert not hold.due
    hold.add(messages(1), {"t": 4})
    assert hold.due


def test_a_group_promises_what_its_weakest_view_does() -> None:
    kinds = {name: Keeping(name) for name in ("sweep", "complete_n", "nested_sweep", "strobe", "convergent")}
    levels = [kinds[name].level for name in kinds]
    assert levels == [Level.COMPLETE, Level.COMPLETE_N, Level.STRONG, Level.CONVERGENT, Level.INCONSISTENT]
    assert weakest({name: kinds[name] for name in ("sweep", "complete_n", "nested_sweep")}) is Level.STRONG
    assert weakest({}) is Level.COMPLETE


def test_only_an_algorithm_for_global_transactions_shows_them_as_one() -> None:
    assert [name for name in ALGORITHMS if Keeping(name).spans_sources] == ["g_strobe"]


def test_the_conventional_algorithm_needs_keys_to_delete_by_key() -> None:
    keyless = TinyView.of(CHAIN_VIEW, CHAIN)
    assert Keeping("convergent").problems(keyless) == []
    assert Keeping("convergent", {"keyed": True}).problems(keyless)


def test_a_message_tells_the_global_transaction_it_is_part_of() -> None:
    head = b'{"source": "shop", "txn": "8", "position": 8, "changes": [], "global_txn": '
    told = read_message(head + b'{"id": "g7", "sources": ["shop", "crm"]}}', "shop", ()).part_of
    assert told == ("g7", frozenset({"shop", "crm"}))
    assert read_message(head + b"null}", "shop", ()).part_of is None
