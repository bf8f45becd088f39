"""Tables that are called otherwise for a while: their changes come under a name that no view knows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.pg_shop import VIEWS, before_and_after
from tests.e2e.pg_world import World
from viewkeeper.errors import SourceError, ViewkeeperError

pytestmark = pytest.mark.e2e

CHANGE = "UPDATE {} SET total = total + 100 WHERE id = 1"
CHANGED = ["orders VALUES (1, 1, 1, 'a')", "lines VALUES (1, 1, 1)"]
GIVEN_AWAY = ["ALTER TABLE orders OWNER TO heir"]
HIDDEN = {
    "its schema": ["ALTER SCHEMA public RENAME TO x", CHANGE.format("x.orders"), "ALTER SCHEMA x RENAME TO public"],
    "the table": ["ALTER TABLE orders RENAME TO o", CHANGE.format("o"), "ALTER TABLE o RENAME TO orders", *GIVEN_AWAY],
    "the table, to and fro between schemas": [
        "ALTER TABLE orders SET SCHEMA other",
        CHANGE.format("other.orders"),
        "ALTER TABLE other.orders SET SCHEMA public",
        *GIVEN_AWAY,
    ],
}
SWAPPED = [
    "ALTER TABLE orders RENAME TO o",
    "ALTER TABLE lines RENAME TO orders",
    "ALTER TABLE o RENAME TO lines",
    "UPDATE orders SET qty = qty + 1 WHERE id = 1",
    "ALTER TABLE lines RENAME TO o",
    "ALTER TABLE orders RENAME TO lines",
    "ALTER TABLE o RENAME TO orders",
]
NO_RENAME = [
    "GRANT USAGE ON SCHEMA public TO heir",
    "REVOKE USAGE ON SCHEMA public FROM heir",
    "COMMENT ON SCHEMA public IS 'x'",
    "ALTER TABLE lines OWNER TO heir",
    "ALTER SCHEMA other RENAME TO another",
    "ALTER SCHEMA another RENAME TO other",
]
FOUND = r"source shop: the log tells of a table \S+, which may have been .*orders.* may be missing; run `viewkeeper"


@pytest.fixture
def owned(world: World) -> Iterator[World]:
    """The shop beside another schema and a role that may be given its tables; each has a row to be changed."""
    shop = world.databases["shop"]
    world.write("shop", *(f"INSERT INTO {row} ON CONFLICT (id) DO NOTHING" for row in CHANGED))
    world.batch()
    shop.execute("CREATE ROLE heir", "CREATE SCHEMA other", "GRANT CREATE ON SCHEMA public, other TO heir")
    yield world
    shop.execute(
        "REASSIGN OWNED BY heir TO current_user",
        "DROP OWNED BY heir",
        "DROP ROLE heir",
        "DROP SCHEMA other CASCADE",
    )
    world.open(*VIEWS)


@pytest.mark.parametrize("together", [False, True], ids=["transaction by transaction", "in one transaction"])
@pytest.mark.parametrize("renamed", HIDDEN)
def test_changes_of_a_table_that_had_another_name_for_a_while_stop_the_job(
    owned: World, renamed: str, together: bool
) -> None:
    """Though it looks as it did before, and nothing else happens."""
    world, cut = owned, owned.cut
    for statements in [HIDDEN[renamed]] if together else [[one] for one in HIDDEN[renamed]]:
        world.write("shop", *statements)
    world.batch()
    assert world.cut == cut
    with pytest.raises(SourceError, match=FOUND):
        world.job._look_at_sources()
    before_and_after(world)
    with pytest.raises(SourceError, match=FOUND):
        world.batch()
    assert world.cut == cut, "no cut is past it"
    world.open(*VIEWS)
    before_and_after(world)
    world.batch()
    world.check()


@pytest.mark.parametrize("renamed", HIDDEN)
def test_so_do_changes_that_were_made_under_another_name_while_no_job_ran(owned: World, renamed: str) -> None:
    world, cut = owned, owned.cut
    world.close()
    for statement in HIDDEN[renamed]:
        world.write("shop", statement)
    world.open()
    world.batch()
    with pytest.raises(SourceError, match=FOUND):
        world.job._look_at_sources()
    world.open()
    before_and_after(world)
    with pytest.raises(SourceError, match=FOUND):
        world.batch()
    assert world.cut == cut
    world.open(*VIEWS)
    world.check()


@pytest.mark.parametrize("stopped", [False, True], ids=["while the job runs", "while it is stopped"])
def test_tables_that_swapped_their_names_for_a_while_stop_the_job(owned: World, stopped: bool) -> None:
    """No stranger comes, but changes of one under the name of the other."""
    world = owned
    if stopped:
        world.close()
    world.write("shop", *SWAPPED)
    found = r"table (orders|lines) was renamed or moved, if only for a while|orders: column 'total' is missing"
    with pytest.raises(ViewkeeperError, match=found):
        world.open() if stopped else world.batch()


def test_oracle_a_table_that_is_a_partition_for_a_while_is_told_of_under_its_own_name(owned: World) -> None:
    world = owned
    world.write("shop", "CREATE TABLE other.root (LIKE lines INCLUDING ALL) PARTITION BY RANGE (id)")
    world.write("shop", "ALTER TABLE other.root ATTACH PARTITION lines DEFAULT")
    world.write("shop", "UPDATE other.root SET qty = qty + 1", "INSERT INTO other.root VALUES (99, 1, 1)")
    world.write("shop", "ALTER TABLE other.root DETACH PARTITION lines", "DELETE FROM lines WHERE id = 99")
    world.batch()
    world.job._look_at_sources()
    before_and_after(world)
    world.batch()
    world.check()


def test_oracle_only_views_of_the_table_that_had_another_name_need_to_be_loaded_again(owned: World) -> None:
    world = owned
    for statement in HIDDEN["the table"]:
        world.write("shop", statement)
    world.open("bought", "pairs")
    world.batch()
    world.job._look_at_sources()
    world.open()
    before_and_after(world)
    world.batch()
    world.check()


@pytest.mark.parametrize("stopped", [False, True], ids=["while the job runs", "while it is stopped"])
def test_oracle_other_tables_of_the_publication_and_rights_on_the_schema_are_no_alarm(
    owned: World, stopped: bool
) -> None:
    """Not even tables that have come, were changed and are gone: nothing of ours had another name meanwhile."""
    world, publication = owned, owned.databases["shop"].slot
    if stopped:
        world.close()
    for statement in NO_RENAME:
        world.write("shop", statement)
    world.write("shop", "UPDATE tags SET note = 'd'")
    if not stopped:
        world.batch()
        world.job._look_at_sources()
    if stopped:
        world.open()
    world.batch()
    world.job._look_at_sources()
    world.write("shop", "CREATE TABLE other.t (id int)", f"ALTER PUBLICATION {publication} ADD TABLE other.t")
    world.write("shop", "INSERT INTO other.t VALUES (1)")
    world.write("shop", "DROP TABLE other.t")
    before_and_after(world)
    world.batch()
    world.job._look_at_sources()
    world.open()
    before_and_after(world)
    world.batch()
    world.check()
