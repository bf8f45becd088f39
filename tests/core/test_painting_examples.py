"""Examples 1–5 of multiple-view-consistency-1997, every table as it is drawn there, and where the paper is wrong.

AL_i^Vx is the paper's AL_i^x. The tables are those of the paper with every step between them; the table is empty in
the end, because applied rows are purged.
"""

from __future__ import annotations

from textwrap import dedent

from viewkeeper.merge.painting import Painter, Painting, SimplePainting

from .painting_worlds import REL, Printed, Scenario, drawn, problem, run

THREE = ("V1", "V2", "V3")
FOUR = ("V1", "V2", "V3", "V4")


class Tables:
    """Collects the table whenever it changes."""

    def __init__(self, states: bool = False) -> None:
        self.states = states
        self.drawn: list[str] = []
        self.painter: Painter | None = None

    def of(self, kind: type[Painter], views: tuple[str, ...] = THREE) -> Painter:
        self.painter = kind(views, watcher=self._draw)
        return self.painter

    def _draw(self) -> None:
        assert self.painter is not None
        self.drawn.append("\n".join(drawn(self.painter.table, self.states)))

    def taken(self) -> list[str]:
        taken, self.drawn = self.drawn, []
        return taken


def table(text: str) -> str:
    return dedent(text).strip("\n")


EMPTY = "  V1  V2  V3  WT"


def test_example_1_changes_of_both_views_are_held_until_they_can_be_applied_together() -> None:
    """V1 = R ⋈ S and V2 = S ⋈ T; [2, 3] is inserted into S, and V1's change is there first."""
    painter: SimplePainting[str] = SimplePainting(("V1", "V2"))
    assert painter.relevant(1, {"V1", "V2"}) == []
    assert painter.actions("V1", 1, "insert [1, 2, 3]") == [], (
        "at t2 the paper's warehouse shows one view without the other"
    )
    (applied,) = painter.actions("V2", 1, "insert [2, 3, 4]")
    assert applied.rows == (1,)
    assert applied.actions == (("V1", 1, "insert [1, 2, 3]"), ("V2", 1, "insert [2, 3, 4]"))
    assert applied.views == {"V1", "V2"}


def test_example_2_the_view_update_table() -> None:
    """V1 = R ⋈ S, V2 = S ⋈ T ⋈ Q, V3 = Q; U1 on S, U2 on Q."""
    tables = Tables()
    painter = tables.of(SimplePainting)
    painter.relevant(1, ("V1", "V2"))
    painter.relevant(2, ("V2", "V3"))
    assert tables.taken()[-1] == table("""
            V1  V2  V3  WT
        U1  w   w   b   ∅
        U2  b   w   w   ∅
    """)
    assert painter.actions("V2", 1, "") == []
    assert tables.taken() == [table("""
            V1  V2  V3  WT
        U1  w   r   b   {AL_1^V2}
        U2  b   w   w   ∅
    """)]  # fmt: skip
    (applied,) = painter.actions("V1", 1, "")
    assert [str(told) for told in applied.actions] == ["AL_1^V2", "AL_1^V1"]
    assert tables.taken()[1:] == [table("""
            V1  V2  V3  WT
        U1  g   g   b   ∅
        U2  b   w   w   ∅
    """), table("""
            V1  V2  V3  WT
        U2  b   w   w   ∅
    """)]  # fmt: skip


def test_example_3_the_simple_painting_algorithm() -> None:
    """V1 = R ⋈ S, V2 = S ⋈ T, V3 = Q; U1 on S, U2 on Q, U3 on T.

    The order of steps is the example's: row 1 is purged (t10) before WT_3 is applied (t11). In Algorithm 1 as printed
    Line 5 comes before Line 6, which would apply WT_3 first; nothing depends on it.
    """
    tables = Tables()
    painter = tables.of(SimplePainting)
    painter.relevant(1, ("V1", "V2"))  # t0
    assert painter.actions("V2", 1, "") == []  # t1
    painter.relevant(2, ("V3",))  # t2
    painter.relevant(3, ("V2",))  # t3
    tables.taken()
    applied = painter.actions("V3", 2, "")  # t4
    assert [(a.rows, a.views) for a in applied] == [((2,), {"V3"})]
    assert painter.applied_prefix == 0
    assert tables.taken() == [table("""
            V1  V2  V3  WT
        U1  w   r   b   {AL_1^V2}
        U2  b   b   r   {AL_2^V3}
        U3  b   w   b   ∅
    """), table("""
            V1  V2  V3  WT
        U1  w   r   b   {AL_1^V2}
        U2  b   b   g   ∅
        U3  b   w   b   ∅
    """), table("""
            V1  V2  V3  WT
        U1  w   r   b   {AL_1^V2}
        U3  b   w   b   ∅
    """)]  # t4, t5, t6  # fmt: skip
    assert painter.actions("V2", 3, "") == []  # t7: Line 2 holds row 3 back
    assert tables.taken() == [table("""
            V1  V2  V3  WT
        U1  w   r   b   {AL_1^V2}
        U3  b   r   b   {AL_3^V2}
    """)]  # fmt: skip
    applied = painter.actions("V1", 1, "")  # t8
    assert [(a.rows, a.views) for a in applied] == [((1,), {"V1", "V2"}), ((3,), {"V2"})]
    assert painter.applied_prefix == 3
    assert tables.taken() == [table("""
            V1  V2  V3  WT
        U1  r   r   b   {AL_1^V2, AL_1^V1}
        U3  b   r   b   {AL_3^V2}
    """), table("""
            V1  V2  V3  WT
        U1  g   g   b   ∅
        U3  b   r   b   {AL_3^V2}
    """), table("""
            V1  V2  V3  WT
        U3  b   r   b   {AL_3^V2}
    """), table("""
            V1  V2  V3  WT
        U3  b   g   b   ∅
    """), EMPTY]  # t8, t9, t10, t11 and after  # fmt: skip


def test_example_4_updates_that_one_action_list_stands_for_are_applied_together() -> None:
    """V1 = R ⋈ S, V2 = S ⋈ T ⋈ Q, V3 = Q; U1 on S, U2 on Q, U3 on S; there is no AL_1^1.

    (So the text's "when the merge process receives AL_1^1, it fills in VUT[1, 1].state = 3" must mean AL_3^1.)
    """
    tables = Tables()
    painter = tables.of(Painting)
    for number, views in enumerate((("V1", "V2"), ("V2", "V3"), ("V1", "V2")), 1):
        painter.relevant(number, views)
    for view, number in (("V1", 3), ("V2", 1), ("V2", 2), ("V3", 2)):
        assert painter.actions(view, number, "") == []
    assert tables.taken()[-1] == table("""
            V1  V2  V3  WT
        U1  r   r   b   {AL_1^V2}
        U2  b   r   r   {AL_2^V2, AL_2^V3}
        U3  r   w   b   {AL_3^V1}
    """)
    assert (
        drawn(painter.table, states=True, transactions=False)
        == table("""
            V1     V2     V3
        U1  (r,3)  (r,1)  (b,0)
        U2  (b,0)  (r,2)  (r,2)
        U3  (r,3)  (w,0)  (b,0)
    """).splitlines()
    )
    (applied,) = painter.actions("V2", 3, "")
    assert applied.rows == (1, 2, 3), "all three views come to state 3 directly"
    assert [str(told) for told in applied.actions] == ["AL_1^V2", "AL_2^V2", "AL_2^V3", "AL_3^V1", "AL_3^V2"]


def test_example_5_the_painting_algorithm() -> None:
    """The views of Example 4; U1 on S, U2 on Q, U3 on Q.

    The text says that AL_1^2, AL_2^2, AL_3^2, AL_1^1, AL_3^3 are received. That cannot be: with AL_2^2 the entry
    [2, 2] would be (r,2) and not (r,3), and V3's manager would owe AL_2^3 for ever. The tables show what was meant:
    AL_1^2, AL_3^2, AL_2^3, AL_1^1, AL_3^3. The tables of t5 and t6 show [2, 3] as (r,0); it was (r,2) at t4, nothing
    happened to it since, and it is (g,2) at t7. And at t4 Line 9 calls ProcessRow(2), the next red one in V2's column,
    not ProcessRow(3); that calls ProcessRow(3) in Line 5, and both return false.
    """
    tables = Tables(states=True)
    painter = tables.of(Painting)
    for number, views in enumerate((("V1", "V2"), ("V2", "V3"), ("V2", "V3")), 1):
        painter.relevant(number, views)
    assert tables.taken()[-1] == table("""
            V1     V2     V3     WT
        U1  (w,0)  (w,0)  (b,0)  ∅
        U2  (b,0)  (w,0)  (w,0)  ∅
        U3  (b,0)  (w,0)  (w,0)  ∅
    """)
    assert painter.actions("V2", 1, "") == []
    assert painter.actions("V2", 3, "") == []
    assert tables.taken() == [table("""
            V1     V2     V3     WT
        U1  (w,0)  (r,1)  (b,0)  {AL_1^V2}
        U2  (b,0)  (w,0)  (w,0)  ∅
        U3  (b,0)  (w,0)  (w,0)  ∅
    """), table("""
            V1     V2     V3     WT
        U1  (w,0)  (r,1)  (b,0)  {AL_1^V2}
        U2  (b,0)  (r,3)  (w,0)  ∅
        U3  (b,0)  (r,3)  (w,0)  {AL_3^V2}
    """)]  # t1, t2  # fmt: skip
    assert painter.actions("V3", 2, "") == []
    (first,) = painter.actions("V1", 1, "")
    assert first.rows == (1,)
    assert tables.taken() == [table("""
            V1     V2     V3     WT
        U1  (w,0)  (r,1)  (b,0)  {AL_1^V2}
        U2  (b,0)  (r,3)  (r,2)  {AL_2^V3}
        U3  (b,0)  (r,3)  (w,0)  {AL_3^V2}
    """), table("""
            V1     V2     V3     WT
        U1  (r,1)  (r,1)  (b,0)  {AL_1^V2, AL_1^V1}
        U2  (b,0)  (r,3)  (r,2)  {AL_2^V3}
        U3  (b,0)  (r,3)  (w,0)  {AL_3^V2}
    """), table("""
            V1     V2     V3     WT
        U1  (g,1)  (g,1)  (b,0)  ∅
        U2  (b,0)  (r,3)  (r,2)  {AL_2^V3}
        U3  (b,0)  (r,3)  (w,0)  {AL_3^V2}
    """), table("""
            V1     V2     V3     WT
        U2  (b,0)  (r,3)  (r,2)  {AL_2^V3}
        U3  (b,0)  (r,3)  (w,0)  {AL_3^V2}
    """)]  # t3, t4, t5 and after  # fmt: skip
    (second,) = painter.actions("V3", 3, "")
    assert second.rows == (2, 3)
    assert tables.taken() == [table("""
            V1     V2     V3     WT
        U2  (b,0)  (r,3)  (r,2)  {AL_2^V3}
        U3  (b,0)  (r,3)  (r,3)  {AL_3^V2, AL_3^V3}
    """), table("""
            V1     V2     V3     WT
        U2  (b,0)  (g,3)  (g,2)  ∅
        U3  (b,0)  (g,3)  (g,3)  ∅
    """), EMPTY]  # t6, t7 and after  # fmt: skip


def rels(count: int) -> list[tuple[str, int]]:
    return [(REL, i) for i in range(1, count + 1)]


def test_algorithm_2_as_printed_applies_a_row_whose_check_has_not_ended() -> None:
    """ProcessRow(3) calls ProcessRow(1) for V1; that one finds row 3 in ApplyRows and applies both at Line 6.

    But row 2 stands above row 3 in V2's column, and V3's actions for it are not there: V2 goes to state 3 past 2.
    """
    scenario = Scenario((("V1",), ("V2", "V3"), ("V1", "V2")), {"V1": (3,), "V2": (2, 3), "V3": (2,)})
    order = [*rels(3), ("V2", 2), ("V2", 3), ("V1", 3), ("V3", 2)]
    assert run(Printed(), scenario, order) == [(1, 3), (2,)]
    assert run(Printed(nested=False), scenario, order) == [(2,), (1, 3)]
    assert run(Painting(THREE), scenario, order) == [(2,), (1, 3)]
    assert problem(Painting(THREE), scenario, order) is None


def test_algorithm_2_as_printed_applies_what_a_failed_call_left_behind() -> None:
    """Row 1 is applied. Line 9 calls ProcessRow(2), which fails in Line 5 (row 4 is white) and stays in ApplyRows;

    then ProcessRow(3), which holds, and row 2 is applied with it: V3 comes to state 2, and V1 stays at 1.
    """
    scenario = Scenario(
        (("V1", "V2", "V4"), ("V1", "V3"), ("V2",), ("V1", "V3")),
        {"V1": (1, 4), "V2": (1, 3), "V3": (2, 4), "V4": (1,)},
    )
    order = [*rels(4), ("V1", 1), ("V2", 1), ("V1", 4), ("V2", 3), ("V3", 2), ("V4", 1), ("V3", 4)]
    assert run(Printed(nested=False), scenario, order) == [(1,), (2, 3), (4,)]
    assert run(Printed(nested=False, stale=False), scenario, order) == [(1,), (3,), (2, 4)]
    assert run(Painting(FOUR), scenario, order) == [(1,), (3,), (2, 4)]
    assert problem(Painting(FOUR), scenario, order) is None


def test_algorithm_2_as_printed_skips_states_that_complete_managers_gave_it() -> None:
    """Row 1 is applied. Line 9 calls ProcessRow(3) for V2 before ProcessRow(2) for V3, and Line 4 takes row 2 along."""
    scenario = Scenario((("V1", "V2", "V3"), ("V3",), ("V2", "V3")), {"V1": (1,), "V2": (1, 3), "V3": (1, 2, 3)})
    order = [*rels(3), ("V2", 1), ("V2", 3), ("V3", 1), ("V3", 2), ("V3", 3), ("V1", 1)]
    assert run(Printed(nested=False, stale=False), scenario, order) == [(1,), (2, 3)]
    assert run(Painting(THREE), scenario, order) == run(SimplePainting(THREE), scenario, order) == [(1,), (2,), (3,)]
