"""The levels on hand-made sequences: each level, each border, and the papers' own data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from viewkeeper.consistency.history import SourceHistory, Vector, at_most
from viewkeeper.consistency.judge import Judgement, Level, judge
from viewkeeper.consistency.mutual import judge_together


def one_source(*states: Any) -> SourceHistory:
    """A source whose transactions lead through these view states, one after the other."""
    return SourceHistory(("s",), (len(states) - 1,), lambda v: states[v[0]], (0,) * (len(states) - 1))


def grid(lengths: Vector, view: Callable[..., Any] = lambda *v: v, **more: Any) -> SourceHistory:
    """Sources a, b, …; the view shows how far each is, unless told otherwise."""
    return SourceHistory(tuple("abcd"[: len(lengths)]), lengths, lambda v: view(*v), **more)


def recheck(states: Sequence[Any], history: SourceHistory, judgement: Judgement) -> None:
    """The mapping that a verdict gives is what the level says, whoever found it."""
    for level, verdict in judgement.verdicts.items():
        if not verdict.holds or level is Level.CONVERGENT:
            continue
        mapping = verdict.mapping
        assert mapping is not None and len(mapping) == len(states)
        assert [history.view(v) for v in mapping] == list(states)
        assert mapping[-1] == history.last
        if level >= Level.STRONG:
            assert all(at_most(one, other) for one, other in pairwise(mapping))
        if level >= Level.COMPLETE_N:
            assert verdict.schedule is not None
            assert (verdict.schedule[0], verdict.schedule[-1]) == (history.first, history.last)
            assert all(b in history.steps(a) for a, b in pairwise(verdict.schedule))
            assert set(mapping) <= set(verdict.schedule)


def judged(states: Sequence[Any], history: SourceHistory, n: int | None = None) -> Judgement:
    judgement = judge(states, history, n)
    recheck(states, history, judgement)
    return judgement


# ---- one source: each level and its borders


def test_every_state_in_order_is_complete() -> None:
    assert judged("abcd", one_source(*"abcd")).level is Level.COMPLETE


def test_a_skipped_state_is_strong_and_is_named() -> None:
    judgement = judged("abd", one_source(*"abcd"))
    assert judgement.level is Level.STRONG
    complete = judgement.verdicts[Level.COMPLETE]
    assert (complete.holds, complete.missing, complete.first_without) == (False, (2,), 2)
    assert judgement.obstacle == complete


def test_going_back_to_an_earlier_state_is_weak() -> None:
    judgement = judged("abacd", one_source(*"abcd"))
    assert judgement.level is Level.WEAK
    assert judgement.verdicts[Level.STRONG].first_without == 2


def test_right_states_in_the_wrong_order_are_weak() -> None:
    judgement = judged("acbd", one_source(*"abcd"))
    assert judgement.level is Level.WEAK
    assert judgement.verdicts[Level.STRONG].first_without == 2


def test_a_state_that_never_was_is_convergent() -> None:
    judgement = judged("abxd", one_source(*"abcd"))
    assert judgement.level is Level.CONVERGENT
    assert judgement.verdicts[Level.WEAK].first_without == 2
    assert judgement.verdicts[Level.STRONG].first_without == 2


def test_a_wrong_last_state_is_inconsistent() -> None:
    judgement = judged("abc", one_source(*"abcd"), n=2)
    assert judgement.level is Level.INCONSISTENT
    assert {v.first_without for v in judgement.verdicts.values()} == {2}


def test_where_the_last_state_is_wrong_the_higher_levels_name_the_first_that_is() -> None:
    judgement = judged("axycz", one_source(*"abcd"))
    assert judgement.level is Level.INCONSISTENT
    assert judgement.verdicts[Level.CONVERGENT].first_without == 4
    assert judgement.verdicts[Level.COMPLETE].first_without == 1


def test_a_wrong_first_state_is_inconsistent() -> None:
    judgement = judged("xbcd", one_source(*"abcd"))
    assert judgement.level is Level.INCONSISTENT
    assert judgement.verdicts[Level.COMPLETE].first_without == 0


def test_repeated_states_count_once_on_either_side() -> None:
    assert judged("aabbbcc", one_source(*"abc")).level is Level.COMPLETE
    assert judged("abc", one_source(*"aabbbcc")).level is Level.COMPLETE
    assert judged("a", one_source(*"aaa")).level is Level.COMPLETE
    assert judged("aaa", one_source("a")).level is Level.COMPLETE


def test_a_state_that_the_sources_return_to_must_be_shown_again() -> None:
    assert judged("aba", one_source(*"aba")).level is Level.COMPLETE
    assert judged("a", one_source(*"aba")).level is Level.STRONG
    assert judged("abab", one_source(*"ab")).level is Level.WEAK


def test_a_detour_after_the_last_transaction_is_found() -> None:
    judgement = judged("abxb", one_source(*"ab"))
    assert judgement.level is Level.CONVERGENT
    assert judgement.verdicts[Level.COMPLETE].first_without == 2


def test_complete_n_shows_every_nth_state_and_the_last() -> None:
    history = one_source(*"abcdefgh")
    assert judged("acegh", history, n=2).level is Level.COMPLETE_N
    assert judged("acefgh", history, n=2).level is Level.COMPLETE_N
    assert judged("adgh", history, n=3).level is Level.COMPLETE_N
    skipping = judged("acgh", history, n=2)
    assert skipping.level is Level.STRONG
    assert skipping.verdicts[Level.COMPLETE_N].missing == (4,)
    assert judged("abcdefgh", history, n=3).verdicts[Level.COMPLETE_N].holds


def test_complete_1_is_complete_and_complete_with_a_large_n_is_strong() -> None:
    for states in ("abcd", "abd", "ad", "acbd", "abxd"):
        verdicts = judged(states, one_source(*"abcd"), n=1).verdicts
        assert verdicts[Level.COMPLETE_N].holds == verdicts[Level.COMPLETE].holds
        verdicts = judged(states, one_source(*"abcd"), n=99).verdicts
        assert verdicts[Level.COMPLETE_N].holds == verdicts[Level.STRONG].holds


# ---- many sources


@pytest.mark.parametrize("order", [(), (0, 0, 1, 1), (1, 1, 0, 0)])
def test_any_interleaving_is_as_good_as_the_one_delivered(order: tuple[int, ...]) -> None:
    history = grid((2, 2), order=order)
    assert judged([(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)], history).level is Level.COMPLETE
    assert judged([(0, 0), (1, 1), (2, 2)], history, n=2).level is Level.COMPLETE_N


@pytest.mark.parametrize("order", [(), (0, 1, 0, 1)])
def test_states_that_no_single_schedule_holds_are_weak(order: tuple[int, ...]) -> None:
    judgement = judged([(0, 0), (1, 0), (0, 1), (2, 2)], grid((2, 2), order=order))
    assert judgement.level is Level.WEAK
    assert judgement.verdicts[Level.STRONG].first_without == 2


def test_the_smallest_of_several_equal_source_states_is_not_always_the_first_found() -> None:
    # "x" is both (2, 0) and (0, 1); only the second leaves room for "y" at (0, 2).
    view = {(0, 0): "-", (2, 0): "x", (0, 1): "x", (0, 2): "y", (2, 2): "z"}
    history = grid((2, 2), lambda *v: view.get(v, v))
    assert judged(["-", "x", "y", "z"], history).level is Level.STRONG


def test_states_may_be_anything_that_compares() -> None:
    history = grid((1, 1), lambda a, b: Counter(a=a, b=b), order=(0, 1))
    assert judged([Counter(a=0, b=0), Counter(a=1), Counter("ab")], history).level is Level.COMPLETE


def test_a_lattice_too_large_to_search_is_undecided() -> None:
    states = [(0, 0), (50, 0), (0, 50), (99, 99)]
    judgement = judge(states, grid((99, 99)), limit=100)
    assert judgement.level is Level.CONVERGENT
    assert judgement.verdicts[Level.STRONG].holds is None
    assert judgement.undecided == (Level.WEAK, Level.STRONG)
    assert "undecided" in judgement.verdicts[Level.STRONG].reason
    assert not judgement.reaches(Level.WEAK)
    assert judge(states, grid((99, 99))).level is Level.WEAK


def test_a_known_schedule_is_never_too_long() -> None:
    order = (0, 1) * 500
    states = [(i - i // 2, i // 2) for i in range(1001)]
    assert judge(states, grid((500, 500), order=order), limit=10).level is Level.COMPLETE


def test_where_the_search_gives_up_the_known_schedule_names_the_first_state_without() -> None:
    order = (0, 1) * 50
    states = [(i - i // 2, i // 2) for i in range(101)]
    states[7] = (7, 7, 7)
    judgement = judge(states, grid((50, 50), order=order), limit=50)
    assert (judgement.verdicts[Level.STRONG].holds, judgement.verdicts[Level.STRONG].first_without) == (None, 7)


def test_the_view_is_asked_once_a_source_state() -> None:
    asked: Counter[Vector] = Counter()

    def view(*v: int) -> Vector:
        asked[v] += 1
        return v

    judged([(0, 0), (1, 0), (0, 1), (2, 2)], grid((2, 2), view, order=(0, 1, 0, 1)), n=2)
    assert set(asked.values()) == {1}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: grid((1, 1), order=(0, 0)),
        lambda: grid((1, 1), together=(frozenset({(0, 1)}),)),
        lambda: SourceHistory(("a",), (1, 1), lambda v: v),
        lambda: judge([], grid((1,))),
        lambda: judge([(0,), (1,)], grid((1,)), n=0),
    ],
)
def test_impossible_histories_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        wrong()


# ---- global transactions


BOTH = frozenset({(0, 0), (1, 0)})
"""The first transactions of a and b are parts of one."""


def test_a_global_transaction_is_one_step() -> None:
    history = grid((2, 1), together=(BOTH,))
    assert list(history.steps((0, 0))) == [(1, 1)]
    assert judged([(0, 0), (1, 1), (2, 1)], history).level is Level.COMPLETE


@pytest.mark.parametrize("order", [(), (0, 0, 1), (1, 0, 0)])
def test_half_of_a_global_transaction_is_weak(order: tuple[int, ...]) -> None:
    judgement = judged([(0, 0), (1, 0), (1, 1), (2, 1)], grid((2, 1), together=(BOTH,), order=order))
    assert judgement.level is Level.WEAK
    assert judgement.verdicts[Level.STRONG].first_without == 1


def test_what_is_delivered_between_the_parts_of_a_global_transaction_comes_before_or_after_it() -> None:
    # b's first transaction is local; a's first and b's second are one.
    parts = frozenset({(0, 0), (1, 1)})
    history = grid((2, 2), together=(parts,), order=(0, 0, 1, 1))
    assert history.schedule == ((0, 0), (0, 1), (1, 2), (2, 2))
    assert judged([(0, 0), (0, 1), (1, 2), (2, 2)], history).level is Level.COMPLETE
    assert judged([(0, 0), (1, 2), (2, 2)], history).level is Level.STRONG


def test_global_transactions_that_precede_each_other_cannot_be_parted() -> None:
    # a: g1, t, g2; b: g2, g1. Nothing of it can be shown alone, not even t.
    g1, g2 = frozenset({(0, 0), (1, 1)}), frozenset({(0, 2), (1, 0)})
    history = grid((4, 2), together=(g1, g2), order=(0, 0, 0, 1, 1, 0))
    assert history.schedule == ((0, 0), (3, 2), (4, 2))
    assert judged([(0, 0), (3, 2), (4, 2)], history).level is Level.COMPLETE
    assert judged([(0, 0), (1, 2), (3, 2), (4, 2)], history).level is Level.WEAK


# ---- the papers' data


def test_strobe_example_4() -> None:
    # T1 replaces [1, 2] by [3, 4]. Strobe shows the view between the two halves, T-Strobe does not.
    history = one_source({(1, 2)}, {(3, 4)})
    strobe: list[set[tuple[int, int]]] = [{(1, 2)}, set(), {(3, 4)}]
    judgement = judged(strobe, history)
    assert judgement.level is Level.CONVERGENT
    assert judgement.verdicts[Level.WEAK].first_without == 1
    assert judged([{(1, 2)}, {(3, 4)}], history).level is Level.COMPLETE


def multiple_views_example_1(v: Vector) -> tuple[frozenset[Any], frozenset[Any]]:
    """V1 = R ⋈ S, V2 = S ⋈ T, where the only transaction inserts [2, 3] into S."""
    r, s, t = [(1, 2)], [(2, 3)][: v[1]], [(3, 4)]
    one = frozenset((a, b, c) for a, b in r for d, c in s if b == d)
    return one, frozenset((b, c, d) for b, c in s for e, d in t if c == e)


def test_multiple_views_example_1() -> None:
    history = SourceHistory(("R", "S", "T"), (0, 1, 0), multiple_views_example_1, (1,))
    before, after = history.view((0, 0, 0)), history.view((0, 1, 0))
    assert after == (frozenset({(1, 2, 3)}), frozenset({(2, 3, 4)}))
    apart = [before, (after[0], before[1]), after]
    judgement = judge_together(("V1", "V2"), apart, history)
    recheck(apart, history, judgement)
    assert judgement.level is Level.CONVERGENT
    weak = judgement.verdicts[Level.WEAK]
    assert (weak.first_without, weak.views) == (1, ("V2",))
    assert "V2" in weak.reason
    for i in (0, 1):  # each view alone is complete
        alone = SourceHistory(("R", "S", "T"), (0, 1, 0), lambda v, i=i: multiple_views_example_1(v)[i], (1,))  # type: ignore[misc]
        assert judged([state[i] for state in apart], alone).level is Level.COMPLETE
    assert judge_together(("V1", "V2"), [before, after], history).level is Level.COMPLETE


def test_the_view_that_ends_wrong_and_the_views_that_skip_a_state_are_named() -> None:
    history = grid((2,), lambda a: (a, -a), order=(0, 0))
    wrong = judge_together(("up", "down"), [(0, 0), (2, -1)], history)
    assert wrong.level is Level.INCONSISTENT
    assert {v.views for v in wrong.verdicts.values()} == {("down",)}
    skipping = judge_together(("up", "down"), [(0, 0), (2, -2)], history)
    assert skipping.level is Level.STRONG
    assert skipping.verdicts[Level.COMPLETE].views == ("up", "down")
    assert skipping.verdicts[Level.STRONG].views == ()


def test_complete_n_counts_from_the_beginning_that_it_is_told() -> None:
    # Two transactions came before: with N = 3 the states after the third and the sixth are due.
    history = one_source(*"cdefgh")
    history.before = 2
    assert judged("cdgh", history, n=3).level is Level.COMPLETE_N
    assert judged("cfh", history, n=3).level is Level.STRONG
