"""The example consumer of ``docs/``: a copy in memory that is the view at every cut, whatever happens to the view."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.e2e.conftest import Install
from tests.e2e.harness import Installation
from viewkeeper.config import load_config

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).parents[2] / "docs" / "follow_view.py"
TABLES = {
    "shop": [
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, total DECIMAL(10,2))",
        "INSERT INTO orders VALUES (1, 1, 19.90), (2, 1, 5), (3, 2, 7)",
    ],
    "crm": [
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)",
        "INSERT INTO customers VALUES (1, 'Ada'), (2, 'Grace')",
    ],
}
VIEWS = {"named": "SELECT c.name, o.total FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id"}


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("follow_view", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(world: Installation, cut: int) -> Counter[tuple[Any, ...]]:
    rows = json.loads(world.done("read", "named", "--cut", str(cut), "--format", "json").out)
    return Counter({(row["name"], row["total"]): row["_count"] for row in rows})


def follow_to(copies: Iterator[Any], world: Installation) -> int:
    """Follows to the newest cut; at every cut on the way the copy is what ``read`` shows of it. How many there were."""
    for seen, copy in enumerate(copies, 1):
        assert copy.rows == read(world, copy.sealed), f"cut {copy.sealed}"
        if copy.sealed == world.cut().cut:
            assert copy.update == world.cut().last_update
            return seen
    raise AssertionError("it ended")


def test_a_copy_that_follows_the_topic_is_the_view_at_every_cut(install: Install) -> None:
    world = install(TABLES, VIEWS)
    world.done("init")
    with world.capturing():
        world.write("shop", "INSERT INTO orders VALUES (4, 2, 7)")
        world.done("run", "--until-idle")
        copies = example().follow(load_config(world.conf), "named")
        assert follow_to(copies, world) == 1, "it begins at the newest cut"
        world.write("crm", "UPDATE customers SET name = 'Ada Lovelace' WHERE id = 1")
        world.write("shop", "DELETE FROM orders WHERE id = 3")
        world.done("run", "--until-idle")
        assert follow_to(copies, world) >= 2
        world.write("shop", "INSERT INTO orders VALUES (5, 1, 1)")
        world.done("init", "--reload", "named")  # which no message tells
        assert follow_to(copies, world) >= 1
    copies.close()


def test_wrong_arguments_are_answered_in_words(install: Install) -> None:
    world = install(TABLES, VIEWS)

    def said(*arguments: str) -> str:
        ended = subprocess.run([sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=120)
        assert ended.returncode in (1, 2) and "Traceback" not in ended.stderr, ended.stderr
        return ended.stderr.splitlines()[-1]

    assert "the following arguments are required: CONF, VIEW" in said()
    assert "nothing.yaml: does not exist" in said("nothing.yaml", "named")
    assert "has no view other; it has named" in said(str(world.conf), "other")
    assert f"named: is not loaded yet; run: viewkeeper init {world.conf}" in said(str(world.conf), "named")
