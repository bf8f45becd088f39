"""``viewkeeper verify`` on a warehouse that was loaded from real databases, without broker or job."""

from __future__ import annotations

import argparse
import sqlite3
from pathlib import Path

import pytest

from viewkeeper.commands import verify
from viewkeeper.config import load_config
from viewkeeper.errors import UsageError
from viewkeeper.job.assembly import assemble
from viewkeeper.job.freezing import frozen
from viewkeeper.job.loading import load
from viewkeeper.warehouse.cuts import WarehouseTransaction
from viewkeeper.warehouse.warehouse import Warehouse


def configured(folder: Path, sql: str) -> Path:
    conf = folder / "conf.yaml"
    conf.write_text(
        "kafka: {bootstrap: '127.0.0.1:1'}\nwarehouse: ./warehouse\n"
        f"sources: {{shop: {{kind: sqlite, path: shop.db}}}}\nviews:\n  v: {{sql: '{sql}'}}\n"
    )
    return conf


def load_views(conf: Path) -> None:
    """The first load, as `init` does it but for the topics."""
    project = assemble(load_config(conf))
    project.captures["shop"].install(project.used("shop"), False)
    source = project.sources["shop"]
    positions = {"shop": source.position(source.freeze(None))}
    warehouse = Warehouse(project.config.warehouse)
    with warehouse.lock():
        warehouse.open()
        with frozen(project.sources, positions, hold=True) as at:
            load(project.views.values(), at.sources, at.snapshots, 0, warehouse, {})
        warehouse.commit(WarehouseTransaction(0, positions, {"shop": 0}, "complete", views=project.views))


@pytest.mark.parametrize("changed", ["SELECT id FROM shop.orders WHERE id > 1", "SELECT total, id FROM shop.orders"])
def test_verify_refuses_a_view_whose_sql_changed_since_its_load(
    tmp_path: Path, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")
        db.execute("INSERT INTO orders VALUES (1, 10), (2, 20)")
    conf = configured(tmp_path, "SELECT id FROM shop.orders")
    load_views(conf)
    args = argparse.Namespace(conf=str(conf), view=None, level=None, since=None)
    assert verify.run(args) == 0
    assert "v: equal to recomputation at cut 0, update 0 (2 rows)" in capsys.readouterr().out

    configured(tmp_path, changed)
    with pytest.raises(UsageError) as refused:
        verify.run(args)
    (problem,) = refused.value.problems
    assert problem.place == f"{conf}: views.v.sql"
    assert f"viewkeeper init {conf} --reload v" in problem.remedy
