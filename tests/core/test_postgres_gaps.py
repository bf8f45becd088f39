"""What catalog rows tell of a table that looks as it did before: written again, and by whom."""

from __future__ import annotations

from viewkeeper.managers.sources.postgres_state import TableState, same_published


def _table(**written: list[str]) -> TableState:
    columns = {"a": [1, 23, -1, ""], "b": [2, 23, -1, ""]}
    return TableState(7, 7, "f", "rp", columns, written={f"column {n[1:]}": how for n, how in written.items()})


BEFORE = _table(c1=["100", "hash of a", "0"], c2=["100", "hash of b", "0"])


def test_columns_that_one_command_wrote_together_were_not_renamed_by_it() -> None:
    """A command renames one column; GRANT and REVOKE write several, and the same again."""
    granted = _table(c1=["105", "hash of a", "3"], c2=["105", "hash of b", "3"])
    assert granted.gap("t", BEFORE) is None


def test_columns_that_were_written_again_one_by_one_may_have_been_renamed_for_a_while() -> None:
    for swapped in (
        _table(c1=["105", "hash of a", "3"], c2=["105", "hash of b", "4"]),
        _table(c1=["105", "hash of a", "0"], c2=["106", "hash of b", "0"]),
        _table(c1=["105", "hash of a", "0"], c2=["100", "hash of b", "0"], c3=["106", "hash of a", "0"]),
    ):
        assert "were renamed, if only for a while" in (swapped.gap("t", BEFORE) or "")


def test_what_was_remembered_without_commands_is_compared_by_transactions() -> None:
    before = _table(c1=["100", "hash of a"], c2=["100", "hash of b"])
    assert BEFORE.gap("t", before) is None
    swapped = _table(c1=["105", "hash of a", "3"], c2=["105", "hash of b", "4"])
    assert "were renamed" in (swapped.gap("t", before) or "")


def test_a_publication_is_as_it_was_unless_it_was_written_by_anything_but_a_new_owner() -> None:
    known = "16390.745:10.16391.745"
    assert same_published(known, known) and same_published("16390.745.16391.745", known)
    assert same_published(known, "16390.801:11.16391.745"), "it was given away"
    for other in ("16390.801:10.16391.745", "16390.801:11.16400.801", "16400.801:11.16391.745", "16390.801:11", None):
        assert not same_published(known, other)
    assert not same_published("16390.745.16391.745", "16390.801:11.16391.745"), "nobody knows whose it was"
