"""Questions to a real PostgreSQL: what is described, looked up, pushed down and refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import unique
from tests.e2e.conftest import MakeDatabase
from tests.e2e.postgres import USUAL, VERSIONS, Database, Servers, database
from viewkeeper.algebra import construct
from viewkeeper.algebra.evaluate import holds
from viewkeeper.algebra.expressions import ColumnRef, Expr, Literal
from viewkeeper.algebra.types import BOOLEAN, DATE, FLOAT, INTEGER, NUMERIC, TEXT, TIMESTAMP, Type, decimal
from viewkeeper.errors import SourceError
from viewkeeper.local.postgres import PostgresServer
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.managers.sources.postgres_catalog import read_tables
from viewkeeper.managers.sources.postgres_encodings import _CODECS
from viewkeeper.managers.sources.postgres_questions import Question
from viewkeeper.managers.sources.postgres_session import LOOK_UP
from viewkeeper.messages import Ask
from viewkeeper.warehouse import mapped

pytestmark = pytest.mark.e2e


def answer(source: PostgresSource, ask: Ask, hold: bool = True) -> pa.Table:
    snapshot = source.freeze(None, hold)
    try:
        return source.ask(ask, snapshot).rows
    finally:
        source.release(snapshot)


def column(source: PostgresSource, ask: Ask) -> list[Any]:
    """The first column of the answer, sorted."""
    return sorted(answer(source, ask).columns[0].to_pylist(), key=repr)


# ---- describe


@pytest.mark.parametrize("version", VERSIONS)
def test_tables_are_described_with_keys_indexes_and_what_the_log_tells(
    new_database: MakeDatabase, version: int
) -> None:
    db = new_database(
        "CREATE TABLE t (a int, b text NOT NULL, c int, d uuid, e jsonb, f numeric, g int4[], PRIMARY KEY (b, a))",
        "CREATE INDEX ON t (c) WHERE c > 5",
        "CREATE INDEX ON t USING hash (d)",
        "CREATE INDEX ON t USING gin (e)",
        "CREATE INDEX ON t ((a + 1))",
        "CREATE TABLE f (id int PRIMARY KEY)",
        "ALTER TABLE f REPLICA IDENTITY FULL",
        "CREATE TABLE i (id int PRIMARY KEY, x int NOT NULL, y int)",
        "CREATE UNIQUE INDEX ix ON i (x) INCLUDE (y)",
        "ALTER TABLE i REPLICA IDENTITY USING INDEX ix",
        "CREATE TABLE n (id int PRIMARY KEY)",
        "ALTER TABLE n REPLICA IDENTITY NOTHING",
        "CREATE SCHEMA other",
        "CREATE TABLE other.hidden (id int)",
        version=version,
    )
    source = PostgresSource("shop", db.config())
    described = source.describe()
    assert described.keys() == {"t", "f", "i", "n"}
    t = described["t"]
    assert t.key == ("b", "a")
    assert t.indexed == {"b", "d"}
    assert t.nullable == {"c", "d", "e", "f", "g"}
    assert t.blurred == {"g"}
    assert t.logged == {"a", "b"}
    assert [c.declared for c in t.columns] == ["int4", "text", "int4", "uuid", "jsonb", "numeric", "_int4"]
    assert t.columns[5].type == NUMERIC
    logged = {name: relation.logged for name, relation in described.items()}
    assert (logged["f"], logged["i"], logged["n"]) == (None, {"x"}, set())
    assert source.describe(["f", "absent"]).keys() == {"f"}
    assert PostgresSource("x", db.config(schema="other")).describe().keys() == {"hidden"}
    source.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("parted", "is partitioned"),
        ("part", "is a partition"),
        ("parent", "inherits"),
        ("child", "inherits"),
        ("quick", 'is unlogged, and no log tells of it; ALTER TABLE "public"."quick" SET LOGGED'),
        ("seen", "is a view"),
        ("kept", "is a materialized view"),
        ("secret", "has row-level security"),
    ],
)
def test_tables_that_cannot_be_kept_are_refused_by_name(refusals: PostgresSource, name: str, why: str) -> None:
    assert refusals.describe()[name].refused.startswith(why)


def test_columns_that_cannot_be_kept_are_refused_by_name(refusals: PostgresSource) -> None:
    columns = {c.name: c.refused for c in refusals.describe()["columns"].columns}
    assert columns["fine"] == ""
    assert columns["made"].startswith("is generated")
    assert columns["span"].startswith("is of type interval")
    assert columns["pair"].startswith("is of type pair")


@pytest.fixture(scope="module")
def refusals(postgres: Servers) -> Iterator[PostgresSource]:
    statements = [
        "CREATE TABLE parted (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parted DEFAULT",
        "CREATE TABLE parent (id int)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE UNLOGGED TABLE quick (id int)",
        "CREATE VIEW seen AS SELECT 1 AS id",
        "CREATE MATERIALIZED VIEW kept AS SELECT 1 AS id",
        "CREATE TABLE secret (id int)",
        "ALTER TABLE secret ENABLE ROW LEVEL SECURITY",
        "CREATE TYPE pair AS (a int, b int)",
        "CREATE TABLE columns (fine int, made int GENERATED ALWAYS AS (fine + 1) STORED, span interval, pair pair)",
    ]
    with database(postgres.shared(), statements) as db:
        source = PostgresSource("shop", db.config())
        yield source
        source.close()


def test_settings_that_spoil_the_log_refuse_the_columns_concerned(new_database: MakeDatabase) -> None:
    db = new_database("CREATE TABLE t (id int PRIMARY KEY, f float8, g float4, b bytea)")
    db.execute(f"ALTER DATABASE {db.name} SET extra_float_digits = 0")
    db.execute(f"ALTER DATABASE {db.name} SET bytea_output = 'escape'")
    source = PostgresSource("shop", db.config())
    refused = {c.name: c.refused for c in source.describe()["t"].columns}
    assert refused["id"] == ""
    for name, setting in (
        ("f", "extra_float_digits = 1"),
        ("g", "extra_float_digits = 1"),
        ("b", "bytea_output = hex"),
    ):
        assert refused[name].endswith(f'; ALTER ROLE "postgres" IN DATABASE "{db.name}" SET {setting}')
    source.close()


# ---- keys

KEYS: dict[str, tuple[list[str], list[Any], pa.DataType]] = {
    "int2": (["1", "2"], [1, 40_000, 2**62], pa.int64()),
    "int4": (["1", "2"], [1, 2**40], pa.int64()),
    "int8": (["1", "2"], [1, -(2**63)], pa.int64()),
    "float8": (["0.1", "'-0'", "'NaN'"], [0.0, float("nan"), 0.1, 1e300], pa.float64()),
    "float4": (["0.1", "'-0'", "1.1"], [0.1, 0.0, 1e300, float("nan")], pa.float64()),
    "numeric(10,2)": (["1.10", "-0.01"], [Decimal("1.10"), Decimal("99999999.99")], pa.decimal128(10, 2)),
    "numeric": (["1.10", "0.00", "1e40", "1e-30"], ["1.1", "0", "1" + "0" * 40, "0." + "0" * 29 + "1"], pa.string()),
    "boolean": (["true", "false"], [True], pa.bool_()),
    "text": (["'a''b'", "'q\"\\'", "'ü'", "'{,}'", "''"], ["a'b", 'q"\\', "{,}", "", "NULL", "x\0"], pa.string()),
    "varchar(9)": (["'a'", "'b'"], ["a", "a "], pa.string()),
    "char(5)": (["'ab'", "'  c'"], ["ab", "  c", "ab "], pa.string()),
    "uuid": (["'11111111-1111-1111-1111-11111111111f'"], ["11111111-1111-1111-1111-11111111111f", "no"], pa.string()),
    "mood": (["'ok'", "'sad'"], ["ok", "no"], pa.string()),
    "json": (["'[1]'", "'[2]'"], ["[1]"], pa.string()),
    "jsonb": (["'[1,  2]'", "'[2]'"], ["[1, 2]"], pa.string()),
    "citext": (["'AbC'", "'x'"], ["AbC", "X", "abc"], pa.string()),
    "bytea": ([r"'\x00ff'", r"'\x'"], [b"\x00\xff", b"", b"'\\"], pa.binary()),
    "date": (["'2026-01-02'", "'0001-01-01'"], [date(2026, 1, 2), date(1, 1, 1)], pa.date32()),
    "timestamp": (["'2026-01-02 03:04:05.6'"], [datetime(2026, 1, 2, 3, 4, 5, 600000, UTC)], pa.timestamp("us", "UTC")),
    "timestamptz": (["'2026-01-02 03:04Z'"], [datetime(2026, 1, 2, 3, 4, 0, 0, UTC)], pa.timestamp("us", "UTC")),
    "int4[]": (["'{1,2}'", "'{3}'"], ["[1,2]"], pa.string()),
}

CITEXT = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'citext') THEN CREATE EXTENSION citext;
    ELSE CREATE DOMAIN citext AS text; END IF;
END $$
"""


@pytest.fixture(scope="module", params=VERSIONS)
def keyed(request: pytest.FixtureRequest, postgres: Servers) -> Iterator[PostgresSource]:
    """A table per type, three times: without an index on the column, with one, and with one of two columns."""
    statements = ["CREATE TYPE mood AS ENUM ('ok', 'sad')", CITEXT]
    for number, (type, (values, _, _)) in enumerate(KEYS.items()):
        for form in ("bare", "tree"):
            statements.append(f"CREATE TABLE {form}{number} (id int PRIMARY KEY, v {type}, w int DEFAULT 1)")
            statements += [f"INSERT INTO {form}{number} VALUES ({i}, {v})" for i, v in enumerate([*values, "NULL"])]
        if type != "json":
            statements.append(f"CREATE INDEX ON tree{number} (v)")
    with database(postgres.shared(request.param), statements, "keys") as db:
        source = PostgresSource("shop", db.config(statement_timeout="10s"))
        yield source
        source.close()


@pytest.mark.parametrize("form", ["bare", "tree"])
@pytest.mark.parametrize("type", KEYS)
def test_rows_are_found_by_keys_of_every_type_and_each_once(keyed: PostgresSource, type: str, form: str) -> None:
    table = f"{form}{list(KEYS).index(type)}"
    _, wanted, arrow = KEYS[type]
    everything = answer(keyed, Ask("shop", table, ("id", "v"))).to_pylist()
    expected = sorted(row["id"] for row in everything if any(_same(row["v"], key) for key in wanted))
    keys = pa.table({"v": pa.array([*wanted, None], arrow)})
    for key, with_more in (
        (("v",), keys),
        (("v", "w"), keys.append_column("w", pa.array([1] * len(keys), pa.int64()))),
    ):
        found = answer(keyed, Ask("shop", table, ("id", "v"), key, with_more)).to_pylist()
        ids = [row["id"] for row in found]
        assert len(ids) == len(set(ids))
        assert sorted(row["id"] for row in found if any(_same(row["v"], k) for k in wanted)) == expected
    assert expected, "the case finds nothing"


def _same(value: Any, key: Any) -> bool:
    return value is not None and (value == key or (value != value and key != key))


def test_a_column_with_a_looser_equality_answers_more_and_never_less(new_database: MakeDatabase) -> None:
    """Where rows equal several keys in PostgreSQL's eyes, each still comes once."""
    db = new_database(
        "CREATE TABLE t (id int PRIMARY KEY, c char(5), d int)",
        "CREATE INDEX ON t (d)",
        "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)",
    )
    source = PostgresSource("shop", db.config())
    keys = pa.table({"c": ["a", "a ", "a  "], "d": pa.array([1, 1, 1])})
    assert column(source, Ask("shop", "t", ("id",), ("c", "d"), keys)) == [1]
    assert column(source, Ask("shop", "t", ("id",), ("c",), keys.select(["c"]))) == [1]
    source.close()


def test_no_keys_answer_no_rows_and_no_columns_still_count(new_database: MakeDatabase) -> None:
    db = new_database("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    source = PostgresSource("shop", db.config())
    assert len(answer(source, Ask("shop", "t", ("id",), ("id",), pa.table({"id": pa.array([], pa.int64())})))) == 0
    assert len(answer(source, Ask("shop", "t", ("id",), ("id",), pa.table({"id": pa.array([None], pa.int64())})))) == 0
    for ask in (Ask("shop", "t", ()), Ask("shop", "t", (), ("id",), pa.table({"id": [1, 2, 3, 4]}))):
        counted = answer(source, ask)
        assert counted.column_names == ["_count"]
        assert len(counted) == 3
    source.close()


def test_odd_names_are_quoted(new_database: MakeDatabase) -> None:
    db = new_database(
        'CREATE SCHEMA "Odd ""schema"', 'CREATE TABLE "Odd ""schema"."Or der" ("Id" int PRIMARY KEY, "se""lect" text)',
        """INSERT INTO "Odd ""schema"."Or der" VALUES (1, 'x')""",
    )  # fmt: skip
    source = PostgresSource("shop", db.config(schema='Odd "schema'))
    source.watch({"Or der": ["Id", 'se"lect']})
    assert column(source, Ask("shop", "Or der", ('se"lect',), ("Id",), pa.table({"Id": [1]}))) == ["x"]
    source.close()


# ---- plans


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("key", [("id",), ("tree",), ("hash",), ("tree", "bare")])
def test_keys_are_looked_up_and_not_scanned_for_whatever_the_statistics_say(
    postgres: Servers, version: int, key: tuple[str, ...]
) -> None:
    statements = [
        "CREATE TABLE t (id int PRIMARY KEY, tree int, hash int, bare int) WITH (autovacuum_enabled = false)",
        "CREATE INDEX ON t (tree)",
        "CREATE INDEX ON t USING hash (hash)",
        "INSERT INTO t VALUES (1, 1, 1, 1)",
        "ANALYZE t",
        "INSERT INTO t SELECT i, i, i, i FROM generate_series(2, 50000) i",
    ]
    with database(postgres.shared(version), statements) as db, db.connect() as connection:
        (table,) = read_tables(connection, "shop", "public", ["t"])
        for name, value in LOOK_UP.items():
            connection.execute(f"SET {name} = {value}".encode())
        for keys in (1, 20_000):
            asked = pa.table({name: pa.array(range(keys), pa.int64()) for name in key})
            question = Question(Ask("shop", "t", ("id", "bare"), key, asked), table, "public")
            assert question.looked_up
            for statement in question.statements(50_000):
                plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {statement}".encode()))
                assert "Seq Scan" not in plan, plan
                assert "Index" in plan


def test_without_an_index_the_table_is_scanned_once_for_all_keys(new_database: MakeDatabase) -> None:
    db = new_database("CREATE TABLE t (id int PRIMARY KEY, bare int)", "ANALYZE t")
    with db.connect() as connection:
        (table,) = read_tables(connection, "shop", "public", ["t"])
        asked = Ask("shop", "t", ("id",), ("bare",), pa.table({"bare": pa.array(range(200_000), pa.int64())}))
        question = Question(asked, table, "public")
        assert not question.looked_up
        (statement,) = question.statements(50_000)
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {statement}".encode()))
        assert "Hash" in plan, plan


def test_an_answer_holds_just_the_rows_that_join(new_database: MakeDatabase) -> None:
    db = new_database(
        "CREATE TABLE t (id int PRIMARY KEY, c int, state text)", "CREATE INDEX ON t (c)",
        "INSERT INTO t SELECT i, i % 1000, CASE WHEN i % 2 = 0 THEN 'open' ELSE 'shut' END "
        "FROM generate_series(1, 20000) i",
    )  # fmt: skip
    source = PostgresSource("shop", db.config())
    keys = pa.table({"c": pa.array(range(0, 1000, 10), pa.int64())})
    state = construct.compare("=", ColumnRef(0, "state", TEXT), Literal("open", TEXT))
    assert len(answer(source, Ask("shop", "t", ("id", "c", "state"), ("c",), keys))) == 2000
    assert len(answer(source, Ask("shop", "t", ("id", "c", "state"), ("c",), keys, state))) == 2000
    shut = construct.compare("=", ColumnRef(0, "state", TEXT), Literal("shut", TEXT))
    assert len(answer(source, Ask("shop", "t", ("id", "c", "state"), ("c",), keys, shut))) == 0
    source.close()


def test_a_whole_table_is_spooled_and_not_held_in_memory(
    new_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = new_database(
        "CREATE TABLE t (id int PRIMARY KEY, x text)",
        "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 300000) i",
    )
    source = PostgresSource("shop", db.config())
    before = pa.total_allocated_bytes()
    found = answer(source, Ask("shop", "t", ("id", "x")))
    assert len(found) == 300_000 > mapped.SPOOL_ROWS
    assert pa.total_allocated_bytes() - before < 10_000_000
    assert found["id"].to_numpy().sum() == 300_000 * 300_001 // 2
    source.close()


# ---- values that do not fit


def test_rows_that_no_view_can_hold_are_an_error_unless_they_are_forgiven(new_database: MakeDatabase) -> None:
    db = new_database(
        "CREATE TABLE t (id int PRIMARY KEY, d date, n numeric(5,2))",
        "INSERT INTO t VALUES (1, '2026-01-01', 1), (2, 'infinity', 2), (3, NULL, 'NaN'), (4, '-infinity', 'NaN')",
    )
    source = PostgresSource("shop", db.config())
    ask = Ask("shop", "t", ("id", "d", "n"))
    with pytest.raises(SourceError, match=r"source shop: t\.d: .* is no date: it is outside the years 1 to 9999; "):
        answer(source, ask)
    source.forgive(["other"])
    with pytest.raises(SourceError, match=r"source shop: t\.d"):
        answer(source, ask, hold=False)
    source.forgive(["t"])
    assert answer(source, ask, hold=False)["id"].to_pylist() == [1]
    with pytest.raises(SourceError, match=r"source shop: t\.d"):
        answer(source, ask, hold=True)
    assert column(source, Ask("shop", "t", ("id",))) == [1, 2, 3, 4]
    source.close()


# ---- selections

MONEY = decimal(10, 2)
COLUMNS: dict[str, tuple[str, Type, list[str]]] = {
    "n": ("int4", INTEGER, ["-3", "0", "1", "2147483647"]),
    "r": ("float8", FLOAT, ["0", "'-0'", "0.5", "-2.5", "1e300", "'Infinity'", "'NaN'", "9007199254740992"]),
    "q": ("float4", FLOAT, ["0", "0.1", "1.1", "16777216", "'NaN'"]),
    "t": ("text", TEXT, ["''", "'a'", "'A'", "'ä'", "'a '", "'b'", "'😀'", "'Z'", "'_'"]),
    "c": ("char(3)", TEXT, ["'a'", "'A'", "''", "'ab'"]),
    "e": ("mood", TEXT, ["'ok'", "'a'"]),
    "u": ("uuid", TEXT, ["'11111111-1111-1111-1111-11111111111f'"]),
    "j": ("jsonb", TEXT, ["'[1,2]'", "'\"a\"'"]),
    "l": ("int4[]", TEXT, ["'{1,2}'", "'{}'"]),
    "b": ("bool", BOOLEAN, ["true", "false"]),
    "d": ("date", DATE, ["'0001-01-01'", "'1970-01-01'", "'9999-12-31'"]),
    "s": ("timestamp", TIMESTAMP, ["'1970-01-01'", "'2026-01-02 03:04:05.6'"]),
    "z": ("timestamptz", TIMESTAMP, ["'1970-01-01 00:00Z'", "'2026-01-02 03:04:05.6Z'"]),
    "m": ("numeric(10,2)", MONEY, ["0", "1.10", "-2.50"]),
}
REFS = {name: ColumnRef(0, name, type) for name, (_, type, _) in COLUMNS.items()}

_integers = st.integers(-3, 3) | st.sampled_from([2**31, 2**53 + 1, 2**63 - 1])
_floats = st.sampled_from([0.0, -0.0, 0.1, 0.5, 1.1, 1.5, -2.5, 2.0**53, 1e300, float("inf"), float("nan")])
_texts = st.sampled_from(["", "a", "A", "ä", "a ", "ok", "Z", "_", "😀", "[1, 2]", "[1,2]", "a'b", "x\0", "1", "{}"])
_days = st.sampled_from([date(1, 1, 1), date(1970, 1, 1), date(2026, 1, 2), date(9999, 12, 31)])
_moments = st.sampled_from([datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, 3, 4, 5, 600000, UTC)])
_amounts = st.sampled_from([Decimal("0.00"), Decimal("1.10"), Decimal("-2.50"), Decimal("99.99")])
_LITERALS: dict[Type, st.SearchStrategy[Any]] = {
    INTEGER: _integers, FLOAT: _floats, TEXT: _texts, BOOLEAN: st.booleans(), DATE: _days, TIMESTAMP: _moments,
    MONEY: _amounts,
}  # fmt: skip


@st.composite
def predicates(draw: st.DrawFn, depth: int = 3) -> Expr:
    if depth > 1 and draw(st.booleans()):
        parts = [draw(predicates(depth - 1)), draw(predicates(depth - 1))]
        build = draw(st.sampled_from([construct.conjunction, construct.disjunction]))
        return draw(st.sampled_from([build(parts), construct.negation(parts[0])]))
    ref = draw(st.sampled_from(list(REFS.values())))
    others = {INTEGER: (INTEGER, FLOAT, MONEY), FLOAT: (FLOAT, INTEGER, MONEY), MONEY: (MONEY, INTEGER)}
    types = [draw(st.sampled_from(others.get(ref.type, (ref.type,)))) for _ in range(2)]
    items = [draw((st.none() | _LITERALS[type]).map(lambda value, type=type: Literal(value, type))) for type in types]
    op: Any = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]))
    choices = [
        construct.compare(op, ref, items[0]),
        construct.compare(op, items[0], ref),
        construct.in_list(ref, items),
        construct.is_null(ref),
    ]
    return draw(st.sampled_from(choices + ([ref] if ref.type == BOOLEAN else [])))


@pytest.fixture(scope="module")
def selected(postgres: Servers) -> Iterator[PostgresSource]:
    """A table in which every column has each of its values, and NULL."""
    declared = ", ".join(f"{name} {type}" for name, (type, _, _) in COLUMNS.items())
    statements = ["CREATE TYPE mood AS ENUM ('ok', 'a')", f"CREATE TABLE t (id int PRIMARY KEY, {declared})"]
    for id in range(12):
        values = [([*values, "NULL"])[id % (len(values) + 1)] for _, _, values in COLUMNS.values()]
        statements.append(f"INSERT INTO t VALUES ({id}, {', '.join(values)})")
    with database(postgres.shared(USUAL), statements) as db:
        source = PostgresSource("shop", db.config())
        yield source
        source.close()


@given(predicate=predicates())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_oracle_what_postgresql_decides_never_loses_a_row_that_the_predicate_keeps(
    selected: PostgresSource, predicate: Expr
) -> None:
    columns = ("id", *COLUMNS)
    everything = answer(selected, Ask("shop", "t", columns))
    kept = everything.filter(holds(predicate, lambda _, name: everything[name], len(everything)))
    answered = answer(selected, Ask("shop", "t", columns, selection=predicate))
    assert set(kept["id"].to_pylist()) <= set(answered["id"].to_pylist()), predicate


@pytest.mark.parametrize(
    ("name", "op", "value"),
    [
        ("n", ">", 0),
        ("m", "=", Decimal("1.10")),
        ("t", "<", "a"),
        ("d", ">=", date(1970, 1, 1)),
        ("b", "=", True),
        ("e", "=", "ok"),
        ("c", "<>", "a"),
    ],
)
def test_comparisons_that_are_certain_are_left_to_postgresql(
    selected: PostgresSource, name: str, op: Any, value: Any
) -> None:
    ref = REFS[name]
    predicate = construct.compare(op, ref, Literal(value, ref.type))
    everything = answer(selected, Ask("shop", "t", ("id", name)))
    kept = everything.filter(holds(predicate, lambda _, column: everything[column], len(everything)))
    answered = answer(selected, Ask("shop", "t", ("id", name), selection=predicate))
    assert 0 < len(answered) == len(kept) < 12


LOOSE = "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


@pytest.fixture(scope="module")
def with_icu(postgres: Servers) -> int:
    """A version whose build here knows such collations."""
    for version in VERSIONS:
        with database(postgres.shared(version)) as db:
            try:
                db.execute(LOOSE)
            except psycopg.errors.FeatureNotSupported:
                continue
            return version
    pytest.skip("no PostgreSQL on this machine was built with ICU")


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("type", ["text", "char(3)", "varchar(3)"])
def test_a_collation_that_takes_texts_for_equal_never_answers_less_nor_twice(
    new_database: MakeDatabase, with_icu: int, type: str, indexed: bool
) -> None:
    """PostgreSQL's EXISTS answers such rows once for every key that they equal."""
    db = new_database(version=with_icu)
    db.execute(
        LOOSE,
        f"CREATE TABLE t (id int PRIMARY KEY, c {type} COLLATE loose, d int)",
        "CREATE INDEX ON t (c)" if indexed else "CREATE INDEX ON t (d)",
        "INSERT INTO t VALUES (1, 'a', 1), (2, 'A', 1), (3, 'b', 1)",
    )
    source = PostgresSource("shop", db.config())
    keys = pa.table({"c": ["a", "A"], "d": pa.array([1, 1])})
    for key in (("c",), ("c", "d")):
        assert column(source, Ask("shop", "t", ("id",), key, keys.select(list(key)))) == [1, 2]
    ref = ColumnRef(0, "c", TEXT)
    for op, kept in (("<>", {2, 3}), ("=", {1}), (">", {3})):
        predicate = construct.compare(op, ref, Literal("a", TEXT))  # type: ignore[arg-type]
        assert kept <= set(column(source, Ask("shop", "t", ("id",), selection=predicate)))
    source.close()


# ---- keys that a column cannot hold


@contextmanager
def encoded(server: PostgresServer, encoding: str) -> Iterator[Database]:
    """A database of another encoding than UTF-8."""
    made = Database(server, f"e_{encoding}_{unique('t').replace('.', '_')}".lower().replace("-", "_"))
    server.execute(f"CREATE DATABASE {made.name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    try:
        made.execute(
            "CREATE TABLE t (id int PRIMARY KEY, name text)",
            "CREATE INDEX ON t (name)",
            "INSERT INTO t VALUES (1, 'plain')",
        )
        yield made
    finally:
        made.drop()


@pytest.mark.parametrize(("encoding", "native"), [("LATIN1", "é"), ("WIN1251", "ж"), ("EUC_JP", "日本")])
def test_a_text_that_the_database_cannot_hold_joins_nothing(postgres: Servers, encoding: str, native: str) -> None:
    """Neither as a key nor as a constant of the view; what it can hold is found as ever."""
    with encoded(postgres.shared(USUAL), encoding) as made:
        with made.connect(client_encoding="UTF8") as connection:
            connection.execute("INSERT INTO t VALUES (2, %s)", (native,))
        source = PostgresSource("shop", made.config())
        source.watch({"t": ["id", "name"]})
        keys = pa.table({"name": ["plain", native, "\u0394ж日é€😀", "a\0b"]})
        name = ColumnRef(0, "name", TEXT)
        for key, selection in (
            (("name",), None),
            ((), construct.compare("<>", name, Literal("😀", TEXT))),
            ((), construct.in_list(name, [Literal(text, TEXT) for text in keys["name"].to_pylist()])),
        ):
            ask = Ask("shop", "t", ("id", "name"), key, keys if key else None, selection)
            assert {"plain", native} <= set(answer(source, ask)["name"].to_pylist())
        source.close()


def test_every_encoding_of_one_byte_a_character_holds_what_python_says(postgres: Servers) -> None:
    with psycopg.connect(postgres.shared(USUAL).url(), autocommit=True) as connection:
        for encoding, codec in _CODECS.items():
            for byte in range(128, 256):
                try:
                    query = "SELECT convert(%s, %s, 'UTF8')"
                    row = connection.execute(query, (bytes([byte]), encoding)).fetchone()
                    held = row[0].decode() if row else ""
                except psycopg.Error:
                    held = ""
                try:
                    known = bytes([byte]).decode(codec)
                except UnicodeDecodeError:
                    known = ""
                assert held == known, f"{encoding} {byte:x}"


ODD: dict[str, list[Any]] = {
    "int2": [2**62, -(2**63), 70_000],
    "int4": [2**62, -(2**63)],
    "int8": [2**63 - 1],
    "float4": [1e300, float("nan"), float("inf"), 5e-324],
    "float8": [1e300, float("nan"), float("-inf")],
    "numeric(4,2)": [Decimal("12.34"), Decimal("-99.99")],
    "text": ["a\0b", "", "\u2028", "x" * 100_000, "{", '"', "\\", "NULL"],
    "varchar(3)": ["longer than that", "a\0b", "null"],
    "char(3)": ["longer than that", "a\0b", "a  "],
    "uuid": ["no uuid", "", "a\0b", "A1111111-1111-1111-1111-11111111111F"],
    "mood": ["no label", "a\0b", ""],
    "jsonb": ["no json", "a\0b", "{"],
    "json": ["no json", "a\0b", "{"],
    "date": [date.min, date.max],
    "timestamp": [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    "timestamptz": [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    "bytea": [b"", b"\0", b"\xff\\"],
    "bool": [True],
}


@pytest.mark.parametrize("indexed", [True, False])
def test_a_key_that_the_column_cannot_hold_joins_nothing_and_stops_nothing(
    new_database: MakeDatabase, indexed: bool
) -> None:
    columns = [f"c{i} {declared}" for i, declared in enumerate(ODD)]
    indexes = [f"CREATE INDEX ON t (c{i})" for i, d in enumerate(ODD) if indexed and d != "json"]
    db = new_database(
        "CREATE TYPE mood AS ENUM ('ok')", f"CREATE TABLE t (id int PRIMARY KEY, {', '.join(columns)})", *indexes
    )
    db.execute("INSERT INTO t (id) VALUES (1)")
    source = PostgresSource("shop", db.config())
    relation = source.describe()["t"]
    for i, (declared, values) in enumerate(ODD.items()):
        described = relation.column(f"c{i}")
        assert described is not None
        keys = pa.table({f"c{i}": pa.array(values, described.type.arrow)})
        for key in ((f"c{i}",), (f"c{i}", "id")):
            asked = keys if len(key) == 1 else keys.append_column("id", pa.array([1] * len(values), pa.int64()))
            assert len(answer(source, Ask("shop", "t", ("id",), key, asked))) == 0, declared
    source.close()
