"""Wide rows: what a job holds is bounded in bytes, however many messages, changes or rows they come to.

``VIEWKEEPER_TEST_ROWS`` chooses a larger size; the peaks are printed.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.harness import Installation, children
from viewkeeper.bench.memory import MemoryWatch

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROWS = int(os.environ.get("VIEWKEEPER_TEST_ROWS", "40000"))
WIDTH = int(os.environ.get("VIEWKEEPER_TEST_WIDTH", "1500"))
PATIENCE = 900.0

TEXT = f"(SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, {WIDTH // 32}) j)"
ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, note text NOT NULL)",
    "CREATE INDEX orders_customer ON orders (customer)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    f"INSERT INTO orders SELECT i, i % 10, {TEXT} FROM generate_series(1, {ROWS}) i",
)
CUSTOMERS = [
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)",
    "INSERT INTO customers VALUES (0, 'a'), (1, 'b'), (2, 'c'), (3, 'd'), (4, 'e'), (5, 'f'), (6, 'g'), (7, 'h')",
]
BUYERS = "SELECT o.id, o.note, c.name FROM shop.orders o JOIN crm.customers c ON o.customer = c.id"


def measured(world: Installation, *arguments: str) -> dict[str, float]:
    """Runs a command that must end well; its peaks of memory in MB.

    What is mapped from files does not count: the system takes it back when it needs it, and keeps it until then.
    """
    running = world.start(*arguments)
    watch = MemoryWatch(running.process.pid, "RssAnon")
    ended = running.wait(PATIENCE)
    peaks = watch.peaks()
    watch.close()
    print({"command": arguments[0], "rows": ROWS, "width": WIDTH, **peaks})
    assert ended.code == 0, ended.err
    return peaks


def test_an_update_of_many_wide_rows_is_loaded_and_kept_in_bounded_memory(
    install: Install, new_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "512m")
    world = install({"crm": CUSTOMERS}, {"buyers": BUYERS}, {"shop": new_database(*ORDERS, name="shop")})
    with world.capturing():
        loading = measured(world, "init")
        world.write("shop", "UPDATE orders SET note = upper(note)")
        keeping = measured(world, "run", "--until-idle")
        assert "equal to recomputation" in world.done("verify").out
    assert keeping.get("workers", 0.0) < 600, "they sweep only what is large, and hold as much of it at any size"
    if ROWS <= 40_000:
        assert loading["driver"] < 600 and keeping["driver"] < 1_100


def test_a_jvm_that_ends_is_named_with_what_to_set_and_the_next_start_goes_on(install: Install) -> None:
    world = install({"crm": CUSTOMERS}, {"names": "SELECT id, name FROM crm.customers WHERE id > 0"})
    world.done("init")
    job = world.start("run")
    java: list[int] = []

    def started() -> bool:
        with suppress(OSError):  # a thread of it has just ended
            java[:] = [p for p in children(job.process.pid) if b"java" in Path(f"/proc/{p}/cmdline").read_bytes()]
        return bool(java) and (world.folder / "warehouse" / "checkpoints" / "all" / "offsets").exists()

    eventually(lambda: started() or not job.alive, 180, "the stream is up")
    os.kill(java[0], signal.SIGKILL)
    ended = job.wait()
    assert ended.code == 3, ended.err
    assert len(ended.errors) == 1 and ended.errors[0] == ended.err.splitlines()[-1]
    assert "spark: its JVM has ended (signal 9); give it more than 1g: set SPARK_DRIVER_MEMORY" in ended.errors[0]
    assert "Traceback" not in ended.err and "internal error" not in ended.err
    world.write("crm", "UPDATE customers SET name = 'z' WHERE id = 3")
    with world.capturing():
        world.done("run", "--until-idle")
    assert "equal to recomputation" in world.done("verify").out
