"""Whether a table that the log names, and nobody captures, may have been one that is captured."""

from __future__ import annotations

from viewkeeper.managers.sources.postgres_names import Names
from viewkeeper.managers.sources.postgres_state import ServerState, TableState


def _look(lsn: int, name: str = "100", schema: str = "50") -> ServerState:
    table = TableState(7, 7, "f", "rp", written={"name": [name, "10", ""], "schema": [schema, "", ""]})
    return ServerState("1", "5", "1", lsn, 900, None, {"orders": table})


def _suspected(names: Names, schema: str, name: str, position: int) -> bool:
    return bool(names.suspects({(schema, name): (position, "7")}, ["orders"]))


def test_a_table_that_nothing_has_renamed_between_two_looks_was_no_stranger_between_them() -> None:
    names = Names()
    for look in (_look(1000), _look(2000)):
        names.see(look)
    assert not _suspected(names, "public", "o", 1500)


def test_a_table_whose_name_was_written_may_have_been_any_stranger_up_to_the_look_that_shows_it() -> None:
    names = Names()
    for look in (_look(1000), _look(2000, name="105"), _look(3000, name="105")):
        names.see(look)
    assert _suspected(names, "public", "o", 1500) and _suspected(names, "x", "orders", 1999)
    assert not _suspected(names, "public", "o", 2500)


def test_a_schema_that_was_written_may_have_hidden_only_tables_of_the_same_name() -> None:
    names = Names()
    for look in (_look(1000), _look(2000, schema="60")):
        names.see(look)
    assert _suspected(names, "x", "orders", 1500)
    assert not _suspected(names, "x", "o", 1500)


def test_what_an_earlier_process_saw_counts_unless_all_views_of_the_table_are_loaded_again() -> None:
    earlier = Names()
    earlier.see(_look(1000))
    for known, suspected in (({**earlier.identity(), "table orders": "{}"}, True), (earlier.identity(), False)):
        names = Names()
        names.see(_look(2000, name="105"))
        names.recall(known, _look(2000, name="105"))
        assert _suspected(names, "public", "o", 1500) is suspected
        names.recall({**earlier.identity(), "table orders": "{}"}, _look(3000, name="105"))
        assert _suspected(names, "public", "o", 1500) is suspected, "it is recalled once"
        assert not _suspected(names, "public", "o", 2500)
