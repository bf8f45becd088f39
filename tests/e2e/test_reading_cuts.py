"""Reading cuts with and without our code: Arrow, Spark, plain Spark SQL and DuckDB give the same rows."""

from __future__ import annotations

import json
import random
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import viewkeeper
from tests.conftest import ODD_FOLDER
from tests.scale import scaled
from viewkeeper import cli
from viewkeeper.algebra.bag import UPDATE
from viewkeeper.errors import UsageError
from viewkeeper.warehouse.cuts import UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs" / "reading.md"
INSTANT = datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC)
DOMAINS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [None, 0, -(2**63), 2**63 - 1]),
    "f": (pa.float64(), [None, 0.0, -0.0, float("nan"), float("inf"), 5e-324]),
    "d": (pa.decimal128(10, 2), [None, Decimal("0.00"), Decimal("-0.01")]),
    "s": (pa.string(), [None, "", "a", "a ", "čaj"]),
    "b": (pa.bool_(), [None, True]),
    "day": (pa.date32(), [None, date(1, 1, 1), date(9999, 12, 31)]),
    "t": (pa.timestamp("us", tz="UTC"), [None, INSTANT, INSTANT + timedelta(microseconds=1)]),
    "x": (pa.binary(), [None, b"", b"\x00", b"\x00\xff"]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in DOMAINS.items()])
Rows = Counter[tuple[Any, ...]]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session as Delta's own manual sets it up; the jars are in Spark's class path."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def transaction(update: int, changes: dict[str, list[pa.Table]] | None = None) -> WarehouseTransaction:
    at = WarehouseTransaction(update, {"s": str(update)}, {"s": update}, "complete")
    if changes is not None:
        at.updates = update_table([UpdateRow(update, "s", str(update), "t", update, tuple(changes))])
        at.changes = dict(changes)
    return at


def table_of(rows: Rows, schema: pa.Schema, update: int | None = None) -> pa.Table:
    listed = [(*row, count) for row, count in rows.items()]
    arrays = [pa.array([row[i] for row in listed], field.type) for i, field in enumerate(schema)]
    arrays.append(pa.array([row[-1] for row in listed], pa.int64()))
    table = pa.Table.from_arrays(arrays, names=[*schema.names, "_count"])
    return table if update is None else table.append_column(UPDATE, pa.array([update] * len(table), pa.int64()))


def rows_of(table: pa.Table) -> Rows:
    """The rows by equality of values: NaN equals NaN, and −0.0 equals 0.0; each is there once, with its count."""
    columns = [table[name].to_pylist() for name in table.column_names if name != "_count"]
    counts = table["_count"].to_pylist()
    rows: Rows = Counter()
    for *row, count in zip(*columns, counts, strict=True):
        rows[tuple("NaN" if value != value else value for value in row)] += count
    assert len(rows) == len(table) and all(count > 0 for count in counts)
    return rows


def random_row(chance: random.Random) -> tuple[Any, ...]:
    row = [chance.choice(values) for _, values in DOMAINS.values()]
    return tuple("NaN" if value != value else value for value in row)


def restored(rows: Rows) -> Rows:
    """With NaN as a number again, and zeros of both signs."""
    back = {"NaN": float("nan")}
    return Counter({tuple(back.get(v, v) if isinstance(v, str) else v for v in row): n for row, n in rows.items()})


class History:
    """A view of every type, and one beside it; ``states`` holds what the first must be at each cut."""

    def __init__(self, root: Path, seed: int):
        self.chance, self.root = random.Random(seed), root
        self.warehouse = Warehouse(root, "eu")
        self.warehouse.open()
        self.state: Rows = Counter({random_row(self.chance): self.chance.randint(1, 3) for _ in range(30)})
        self.states: dict[int, Rows] = {}
        self.update = 0
        self.warehouse.load("every", SCHEMA, "SELECT", [table_of(restored(self.state), SCHEMA)], 0)
        self.warehouse.load("number", NUMBER, "SELECT", [pa.table({"n": [0], "_count": [1]})], 0)
        self.note(transaction(0))

    def note(self, at: WarehouseTransaction) -> None:
        self.states[self.warehouse.commit(at).cut] = Counter(self.state)

    def advance(self) -> None:
        """An update that adds and takes away rows, and counts the number up."""
        self.update += 1
        change: Rows = Counter(
            {row: -self.chance.randint(1, n) for row, n in self.state.items() if self.chance.random() < 0.3}
        )
        for _ in range(self.chance.randint(0, 12)):
            change[random_row(self.chance)] += self.chance.randint(1, 2)
        change = Counter({row: n for row, n in change.items() if n})
        for row, n in change.items():
            self.state[row] += n
        self.state = +self.state
        number = {"n": [self.update - 1, self.update], "_count": [-1, 1], UPDATE: [self.update] * 2}
        rows = table_of(restored(change), SCHEMA, self.update)
        self.note(transaction(self.update, {"every": [rows] if len(rows) else [], "number": [pa.table(number)]}))

    def fold(self) -> None:
        self.warehouse.fold()
        self.note(transaction(self.update))


NUMBER = pa.schema([("n", pa.int64())])


@pytest.mark.parametrize("seed", range(scaled(1, 2)))
def test_agree_arrow_and_spark_at_every_cut(tmp_path: Path, spark: Any, seed: int) -> None:
    """Before, at and after folds; then again with the versions of the first half deleted. Replay by the seed."""
    tmp_path = tmp_path / ODD_FOLDER.replace(":", "")
    history = History(tmp_path, seed)
    for step in range(5):
        history.advance()
        if step in (1, 3):
            history.fold()
    for deleted in (False, True):
        if deleted:
            history.warehouse.vacuum(timedelta(0))
            history.states.pop(max(history.states))
        for cut, expected in history.states.items():
            told = f"seed {seed}, cut {cut}, deleted {deleted}"
            tables = viewkeeper.read_cut(tmp_path, ["every", "number"], cut)
            frames = viewkeeper.read_cut(tmp_path, ["every", "number"], cut, spark=spark)
            assert rows_of(tables["every"]) == expected, told
            assert rows_of(frames["every"].toArrow()) == expected, told
            assert frames["every"].columns == tables["every"].column_names == [*SCHEMA.names, "_count"]
            assert tables["number"]["n"].to_pylist() == [tables.last_update], told
            if deleted:
                assert [row.n for row in frames["number"].collect()] == [frames.last_update], told
            assert (tables.cut, tables.group) == (frames.cut, frames.group) == (cut, "eu")
    newest = viewkeeper.read_cut(tmp_path, "number")
    assert newest.cut == max(history.states) + 1 and list(newest) == ["number"]


def test_a_frame_shows_its_cut_whatever_comes_before_it_is_read(tmp_path: Path, spark: Any) -> None:
    history = History(tmp_path, 1)
    history.advance()
    frames = viewkeeper.read_cut(tmp_path, ["every", "number"], spark=spark)
    expected = Counter(history.state)
    for _ in range(3):
        history.advance()
    history.fold()
    kept = history.warehouse
    for view in ("every", "number"):  # a reload empties the changes that the frames count
        kept.load(view, kept.view_table(view).schema, "SELECT", [kept.read(view).read_all()], 4)
    kept.commit(transaction(4))
    assert rows_of(frames["every"].toArrow()) == expected
    assert [row.n for row in frames["number"].collect()] == [1]


def test_a_folder_that_spark_would_take_for_a_pattern_is_refused(tmp_path: Path, spark: Any) -> None:
    history = History(tmp_path / ODD_FOLDER, 1)
    history.advance()
    with pytest.raises(UsageError, match="Spark cannot read a path with both ':' and one of"):
        viewkeeper.read_cut(tmp_path / ODD_FOLDER, "every", spark=spark)
    assert viewkeeper.read_cut(tmp_path / ODD_FOLDER, "every")["every"].num_rows


def test_what_cannot_be_read_together_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no warehouse"):
        viewkeeper.read_cut(tmp_path, "v")
    History(tmp_path, 1)
    other = Warehouse(tmp_path, "us")
    other.open()
    other.load("other", NUMBER, "SELECT", [], 0)
    other.commit(transaction(0))
    for views, said in (
        (["every", "other"], "they are in groups eu and us, which have no cut in common; read them apart"),
        (["every", "nothing"], r"views\.nothing"),
        ([], "no view was named"),
    ):
        with pytest.raises(UsageError, match=said):
            viewkeeper.read_cut(tmp_path, views)
    with pytest.raises(UsageError, match="there is no cut 7"):
        viewkeeper.read_cut(tmp_path, "other", cut=7)


# ---- the page's own words ----------------------------------------------------------------------------------------


def section() -> str:
    _, _, rest = PAGE.read_text().partition("\n## Several views at one cut\n")
    return rest.partition("\n## ")[0]


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", section(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Rows]:
    """The README's example with a second view, some cuts later; and what the newest cut holds."""
    orders = pa.schema([("name", pa.string()), ("order_id", pa.int64()), ("total", pa.decimal128(10, 2))])
    customers = pa.schema([("id", pa.int64()), ("name", pa.string())])
    first = {
        "customer_orders": Counter({("Ada", 1, Decimal("19.90")): 1, ("Grace", 2, Decimal("5.00")): 1}),
        "customers": Counter({(7, "Ada"): 1, (8, "Grace"): 1}),
    }
    changes = {
        "customer_orders": Counter({("Ada", 1, Decimal("19.90")): -1, ("Ada Lovelace", 1, Decimal("19.90")): 1}),
        "customers": Counter({(7, "Ada"): -1, (7, "Ada Lovelace"): 1}),
    }
    schemas = {"customer_orders": orders, "customers": customers}
    warehouse = Warehouse(tmp_path / "warehouse")
    warehouse.open()
    for view, rows in first.items():
        warehouse.load(view, schemas[view], "SELECT", [table_of(rows, schemas[view])], 0)
    warehouse.commit(transaction(0))
    warehouse.commit(transaction(1, {"customers": [table_of(Counter({(9, "Alan"): 1}), customers, 1)]}))
    warehouse.fold()
    warehouse.commit(transaction(2, {v: [table_of(rows, schemas[v], 2)] for v, rows in changes.items()}))
    configuration = {
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "warehouse": "./warehouse",
        "sources": {name: {"kind": "sqlite", "path": f"./{name}.db"} for name in ("shop", "crm")},
        "views": {view: {"sql": "SELECT c.id FROM crm.customers c"} for view in first},
    }
    (tmp_path / "try.yaml").write_text(json.dumps(configuration))
    monkeypatch.chdir(tmp_path)
    first["customers"][9, "Alan"] = 1
    for view, rows in changes.items():
        first[view].update(rows)
    return {view: +rows for view, rows in first.items()}


def test_the_commands_of_the_readme_read_both_views_at_one_cut(
    tried: dict[str, Rows], capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = snippets("sh")
    newest, earlier = (shlex.split(line, comments=True) for line in block.splitlines())
    assert newest[0] == earlier[0] == "viewkeeper"
    assert cli.main(newest[1:]) == 0
    shown = capsys.readouterr().out
    assert "customer_orders at cut 2" in shown and "customers at cut 2" in shown and shown.count("Ada Lovelace") == 2
    assert cli.main(earlier[1:]) == 0
    views = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in views["customers"]] == ["Ada", "Grace", "Alan"]
    assert len(views["customer_orders"]) == 2


def test_the_python_of_the_readme_reads_both_views_at_one_cut(
    tried: dict[str, Rows], spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, plain_spark, duckdb = snippets("python")
    names: dict[str, Any] = {"spark": spark}
    exec(ours, names)
    assert capsys.readouterr().out == "group all, cut 2, after update 2\n"
    assert {view: rows_of(table) for view, table in names["tables"].items()} == tried
    assert {view: rows_of(frame.toArrow()) for view, frame in names["frames"].items()} == tried
    assert rows_of(names["orders"]) == tried["customer_orders"]
    assert "viewkeeper" not in plain_spark + duckdb
    names = {}
    exec(duckdb, names)
    assert rows_of(names["orders"]) == tried["customer_orders"] and rows_of(names["customers"]) == tried["customers"]


WRITE = """
import pyarrow.parquet
pyarrow.parquet.write_table(orders.toArrow(), "customer_orders.parquet")
pyarrow.parquet.write_table(customers.toArrow(), "customers.parquet")
"""


def test_the_spark_sql_of_the_readme_is_a_whole_program(tried: dict[str, Rows]) -> None:
    """In a process of its own, from its session on; and with nothing of ours."""
    _, plain_spark, _ = snippets("python")
    done = subprocess.run([sys.executable, "-c", plain_spark + WRITE], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert {view: rows_of(pq.read_table(f"{view}.parquet")) for view in tried} == tried
