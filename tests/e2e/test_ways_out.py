"""Ways out: what an error tells to do, pasted as it stands, does it; and what is not concerned goes on meanwhile."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.harness import PATIENCE, Ended, Installation

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TABLES = {
    "shop": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT)",
        "CREATE TABLE u (id INTEGER PRIMARY KEY, x TEXT)",
        "INSERT INTO t VALUES (1, 'a', 'b')",
        "INSERT INTO u VALUES (1, 'x')",
    ],
    "crm": ["CREATE TABLE w (id INTEGER PRIMARY KEY, y TEXT)", "INSERT INTO w VALUES (1, 'y')"],
}
VIEWS = {
    "both": "SELECT id, a, b FROM shop.t",
    "one": "SELECT id, a FROM shop.t",
    "other": "SELECT id, x FROM shop.u",
    "elsewhere": "SELECT id, y FROM crm.w",
}


def pasted(world: Installation, refused: Ended) -> Ended:
    """Runs the command that the last error tells, from another folder, as it stands."""
    found = re.search(r"[`'](viewkeeper [^`']*)[`']", refused.errors[-1])
    assert found is not None, refused.err
    _, command, conf, *rest = shlex.split(found[1])
    assert conf == str(world.conf), found[1]
    ended = world.run(command, *rest)
    assert ended.code == 0, f"{found[1]}: {ended.err}"
    return ended


def loaded_again(ended: Ended) -> set[str]:
    return set(re.findall(r"view (\w+) loaded", ended.err))


def test_after_a_used_column_was_dropped_one_command_leads_out(install: Install) -> None:
    world = install(TABLES, VIEWS)
    world.done("init")
    world.done("capture", "--remove", "shop")  # its triggers hold the column
    world.write("shop", "ALTER TABLE t DROP COLUMN b")
    world.views["both"] = "SELECT id, a, a AS b FROM shop.t"
    world.configure()
    again = loaded_again(pasted(world, world.run("init")))
    assert "both" in again and "elsewhere" not in again, "what another source holds is not read again"
    world.done("verify")


def test_after_a_used_column_was_dropped_in_postgresql_every_way_out_works(
    install: Install, new_database: MakeDatabase
) -> None:
    full = [f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in ("t", "u")]
    world = install({"crm": TABLES["crm"]}, VIEWS, {"shop": new_database(*TABLES["shop"], *full, name="shop")})
    world.done("init")
    world.write("shop", "ALTER TABLE t DROP COLUMN b")
    assert world.run("init").code == 2, "the view's SQL is to be corrected"
    world.views["both"] = "SELECT id, a, a AS b FROM shop.t"
    world.configure()
    with world.capturing():  # views that stay are first brought up to what the reloaded one will show
        again = loaded_again(pasted(world, world.run("init")))
    assert "both" in again and "elsewhere" not in again


def test_a_bad_view_holds_up_neither_capture_nor_other_groups(install: Install) -> None:
    world = install(TABLES, VIEWS, groups={"shop": ["both", "one", "other"], "crm": ["elsewhere"]})
    world.done("init")
    world.views["both"] = "SELECT id, a, nothing FROM shop.t"
    world.configure()
    checked = world.run("check")
    assert checked.code == 2 and "views.both.sql" in checked.errors[-1]
    assert all(f"ok      view {view}: " in checked.out for view in ("one", "other", "elsewhere"))
    with world.capturing() as capture:
        assert "views.both.sql" in capture.err.read_text()
        world.write("shop", "INSERT INTO t VALUES (2, 'c', 'd')")
        eventually(lambda: world.delivered("shop"), PATIENCE, "its source is captured all the same")
        job, before = world.start("run"), world.cut("crm").cut
        world.write("crm", "INSERT INTO w VALUES (2, 'z')")
        world.await_cut(before, job, "crm")
        ended = job.terminate()
    assert ended.code == 2 and "views.both.sql" in ended.errors[-1]
