"""The sources' past, rolled back from what they hold now, and views judged against it; no broker, no databases."""

from __future__ import annotations

import pytest

from tests.core.worlds import catalog, relation
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import Bag, Name
from viewkeeper.consistency.judge import Level, judge
from viewkeeper.errors import SourceError
from viewkeeper.job.judging import Promise, Recomputation
from viewkeeper.job.past import Numbered, Past, plain
from viewkeeper.managers.keeping import Keeping

R, S = ("a", "r"), ("b", "s")
RELATIONS = catalog(relation("a", "r", "x y"), relation("b", "s", "y z"))
VIEW = parse_view("v", "SELECT r.x, s.z FROM a.r r JOIN b.s s ON r.y = s.y", RELATIONS)

NOW: dict[Name, Bag] = {R: {(1, 3): 1, (2, 3): 2}, S: {(3, 5): 1}}
UPDATES = [
    Numbered(1, "a", "t1", {R: {(1, 3): 1}}),
    Numbered(2, "b", "t1", {S: {(3, 4): 1}}),
    Numbered(3, "c", "t1", {}),
    Numbered(4, "a", "t2", {R: {(2, 3): 2}}),
    Numbered(5, "b", "t2", {S: {(3, 4): -1, (3, 5): 1}}),
]


def state(**rows: int) -> tuple[frozenset[object]]:
    """A state of the view: x1z4=1 is the row (1, 4), once."""
    return (frozenset(((int(name[1]), int(name[3])), count) for name, count in rows.items()),)


def test_relations_are_rolled_back_to_where_they_began_and_forward_again() -> None:
    past = Past(0, UPDATES, NOW)
    assert past.sources == ("a", "b", "c")
    assert past.counts(0) == (0, 0, 0) and past.counts(4) == (2, 1, 1)
    assert past.relations([R, S], past.versions([R, S], past.counts(0))) == {R: {}, S: {}}
    assert past.relations([R, S], past.versions([R, S], (2, 1, 0))) == {R: NOW[R], S: {(3, 4): 1}}
    assert past.relations([R, S], past.versions([R, S], past.counts(5))) == NOW


def test_a_change_that_no_message_tells_of_is_an_error_and_not_a_verdict() -> None:
    with pytest.raises(SourceError, match="r does not hold what update 1 left in it"):
        Past(0, UPDATES, {**NOW, R: {(2, 3): 2}})


def test_a_view_is_recomputed_over_any_source_state() -> None:
    history = Recomputation({"v": VIEW}, Past(0, UPDATES, NOW), RELATIONS).history(["v"], 0)
    assert history.order == (0, 1, 2, 0, 1) and history.lengths == (2, 2, 1)
    assert history.view((1, 2, 0)) == state(x1z5=1)
    states = [state(), state(), state(x1z4=1), state(x1z4=1), state(x1z4=1, x2z4=2), state(x1z5=1, x2z5=2)]
    assert [history.view(v) for v in history.schedule] == states
    assert judge(states, history).level is Level.COMPLETE


def test_a_later_beginning_is_counted_from_there() -> None:
    history = Recomputation({"v": VIEW}, Past(0, UPDATES, NOW), RELATIONS).history(["v"], 3)
    assert (history.lengths, history.before) == ((1, 1, 0), 3)
    assert history.view(history.first) == state(x1z4=1)
    assert judge([state(x1z4=1), state(x1z5=1), state(x1z5=1, x2z5=2)], history).level is Level.COMPLETE


def test_half_of_a_global_transaction_is_not_strong() -> None:
    updates = [*UPDATES[:3], *(Numbered(u.number, u.source, u.txn, u.changes, "g") for u in UPDATES[3:])]
    history = Recomputation({"v": VIEW}, Past(0, updates, NOW), RELATIONS).history(["v"], 0)
    assert history.together == (frozenset({(0, 1), (1, 1)}),)
    whole = [state(), state(x1z4=1), state(x1z5=1, x2z5=2)]
    assert judge(whole, history).level is Level.COMPLETE
    assert judge([*whole[:2], state(x1z4=1, x2z4=2), whole[2]], history).level is Level.WEAK


def test_rows_with_nan_are_equal_rows() -> None:
    assert plain([float("nan"), 1]) == plain([float("nan"), 1])
    assert len({plain([float("nan")]), plain([float("nan")])}) == 1


SWEPT, STEPPED, NAIVE = Keeping(), Keeping("t_strobe"), Keeping("convergent")
BY_THREE, BY_FOUR = (Keeping("complete_n", {"complete_n": n}) for n in (3, 4))


@pytest.mark.parametrize(
    ("keepings", "level", "published"),
    [
        ([SWEPT], Level.COMPLETE, {2, 3, 4, 5, 6, 7}),
        ([SWEPT, SWEPT], Level.COMPLETE, {2, 3, 4, 5, 6, 7}),
        ([BY_THREE, BY_THREE], Level.COMPLETE_N, {3, 6}),
        ([BY_THREE, BY_FOUR], Level.STRONG, set()),
        ([SWEPT, BY_THREE], Level.STRONG, set()),
        ([SWEPT, STEPPED], Level.STRONG, set()),
        ([STEPPED, NAIVE], Level.INCONSISTENT, set()),
    ],
)
def test_views_together_promise_what_all_of_them_do_where_their_steps_meet(
    keepings: list[Keeping], level: Level, published: set[int]
) -> None:
    promise = Promise.of(keepings)
    assert (promise.level, promise.published(2, 7)) == (level, published)


def test_complete_n_tells_its_n() -> None:
    assert Promise.of([Keeping("complete_n")]).n == 10
