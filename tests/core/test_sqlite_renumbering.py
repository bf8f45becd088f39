"""VACUUM gives other rowids to the rows of a table that has no INTEGER PRIMARY KEY: no note of a rowid outlives it."""

from __future__ import annotations

import pytest

from tests.core.sqlite_worlds import Watched, connect

COMPANY = {
    "alone": [],
    "with a trigger of its own": ["CREATE TRIGGER mine AFTER INSERT ON t BEGIN UPDATE t SET a = a WHERE a < 0; END"],
}
STALE = [
    "UPDATE OR IGNORE t SET rowid = 4 WHERE a < 4",  # notes that 4 stands in the way
    "INSERT OR IGNORE INTO t (rowid, a) VALUES (4, 0)",
]


@pytest.mark.parametrize("company", COMPANY)
@pytest.mark.parametrize("stale", STALE)
@pytest.mark.parametrize("next", ["INSERT INTO t (a) VALUES (9)", "UPDATE t SET rowid = 4 WHERE a = 3"])
def test_a_row_that_gets_the_rowid_of_another_one_after_vacuum_replaces_nothing(
    company: str, stale: str, next: str
) -> None:
    db = connect()
    db.execute("CREATE TABLE t (a INTEGER)")
    db.execute("INSERT INTO t VALUES (1), (2), (3), (4)")
    for trigger in COMPANY[company]:
        db.execute(trigger)
    watched = Watched(db, "t")
    watched.run(stale, "DELETE FROM t WHERE a = 1")
    watched.compact()
    watched.run(next)
    watched.compact()
    watched.run("REPLACE INTO t (rowid, a) VALUES (1, 7)", "UPDATE OR REPLACE t SET rowid = 2 WHERE a = 7")
