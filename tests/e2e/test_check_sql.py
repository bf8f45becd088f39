"""``check --sql``: what a PostgreSQL server lacks is a script for each role, and pasting it is enough."""

from __future__ import annotations

import re
import subprocess
from contextlib import closing

import pytest

from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.postgres import Database

pytestmark = pytest.mark.e2e

PASSWORD = "only-for-this-test"
VIEW = 'SELECT o.id, o.total, l.product FROM shop.orders o JOIN shop."Order Lines" l ON l.order_id = o.id'


def paste(database: Database, role: str, script: str) -> None:
    """Into psql, which stops at the first statement that fails."""
    psql = database.server.binaries / "psql"
    password = PASSWORD if role != "postgres" else None
    command = [str(psql), "-X", "-v", "ON_ERROR_STOP=1", database.server.url(database.name, role, password)]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_after_pasting_what_check_prints_it_is_content(install: Install, new_database: MakeDatabase) -> None:
    database = new_database(name="shop")
    owner, role = f"{database.name}_owner", f"{database.name}_reader"
    database.execute(*(f"CREATE ROLE {name} LOGIN PASSWORD '{PASSWORD}'" for name in (owner, role)))
    database.execute(
        f"CREATE SCHEMA sales AUTHORIZATION {owner}",
        f"SET LOCAL ROLE {owner}",
        "CREATE TABLE sales.orders (id int PRIMARY KEY, total int)",
        'CREATE TABLE sales."Order Lines" (id int PRIMARY KEY, order_id int, product text)',
        'CREATE INDEX ON sales."Order Lines" (order_id)',
    )
    try:
        reading = Database(database.server, database.name, list(database.slots))
        section = {**database.section(), "url": database.server.url(database.name, role, PASSWORD), "schema": "sales"}
        reading.section = lambda **settings: {**section, **settings}  # type: ignore[method-assign]
        world = install({}, {"sold": VIEW}, databases={"shop": reading})
        before = world.run("check", "--sql")
        assert before.code == 3 and "may not replicate" in before.err, before.err
        found = re.findall(r"^-- source shop: as ([^\n]*?), in database (\S+)\n(.*?)(?:^$|\Z)", before.out, re.M | re.S)
        scripts = {who: script for who, where, script in found if where == database.name}
        assert set(scripts) == {"a superuser", "the owner of the tables"}, before.out
        assert all(line.startswith("--") or line.endswith(";") for line in before.out.splitlines() if line)
        paste(database, "postgres", scripts["a superuser"])
        paste(database, owner, scripts["the owner of the tables"])
        after = world.done("check", "--sql")
        assert after.out == "-- no statement is missing\n"
        assert "problem" not in world.done("check").out
    finally:
        with closing(database.connect()) as connection:
            connection.execute(f"DROP OWNED BY {owner}, {role} CASCADE".encode())
            connection.execute(f"DROP ROLE {owner}, {role}".encode())
