"""For every type that views may use, a message of real Debezium and an answer of the same server tell one value."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.conftest import SharedBroker, eventually
from tests.e2e.postgres import VERSIONS, Database, Servers, database
from viewkeeper.algebra.types import Relation
from viewkeeper.capture.connect import Connect, Program, Supervised
from viewkeeper.capture.debezium_connector import Login, connector
from viewkeeper.errors import SourceError
from viewkeeper.local.jars import jar_folder, java
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.managers.sources.postgres_values import Misfits, debezium_column
from viewkeeper.messages import Ask

pytestmark = pytest.mark.e2e

TYPES = """
CREATE TYPE mood AS ENUM ('ok', 'sad ', 'it''s "fine"');
CREATE DOMAIN whole AS int4; CREATE DOMAIN count AS whole; CREATE DOMAIN price AS numeric(6,2);
CREATE DOMAIN code AS char(4); CREATE DOMAIN list AS int4[]
"""

CITEXT = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'citext') THEN CREATE EXTENSION citext;
    ELSE CREATE DOMAIN citext AS text; END IF;
END $$
"""

VALUES: dict[str, list[str]] = {
    "int2": ["0", "-32768", "32767"],
    "int4": ["0", "-2147483648", "2147483647"],
    "int8": ["0", "-9223372036854775808", "9223372036854775807", "9007199254740993"],
    "float8": [
        "0", "'-0'", "1.1", "0.1", "1e300", "'5e-324'", "1.7976931348623157e308", "'NaN'", "'Infinity'", "'-Infinity'",
        "123456789012345680", "1e21", "1e-7", "1e23", "2e-3", "9007199254740993",
    ],
    "float4": [
        "0", "'-0'", "1.1", "0.1", "16777216", "3.4028235e38", "1e-45", "'NaN'", "'Infinity'", "1e10", "123456.79",
        "0.3333333", "8.41e21", "2e-3", "1.17549435e-38", "33554432", "9.999999e-41", "7.038531e-26",
    ],
    "numeric(10,2)": ["0", "-0.00", "1.1", "12345678.90", "-99999999.99"],
    "numeric(38,10)": ["1", "1234567890123456789012345678.0123456789", "-0.0000000001"],
    "numeric(38)": ["99999999999999999999999999999999999999"],
    "numeric": [
        "0", "1.50", "-0.00", "1e60", "-1e-60", "1234567890123456789012345678901234567890.0987654321",
        "(repeat('7', 3000) || '.' || repeat('3', 2000))::numeric", "1000000", "0.0000001",
    ],
    "numeric(60,30)": ["123456789012345678901234567890.123456789012345678901234567890"],
    "numeric(5,-2)": ["1234567"],
    "numeric(2,4)": ["0.0012", "-0.0099"],
    "boolean": ["true", "false"],
    "text": ["''", "'a'", "'ünï😀'", r"E'a\nb\tc\u0001\\d\"e\r\u007f\u2028'", "' pad '", "repeat('long ', 100000)"],
    "varchar(10)": ["'abc  '", "''"],
    "varchar": ["'abc'"],
    "char(5)": ["'ab'", "''", "'abcde'", "'  x'", "E'a\\t'", "'ü'"],
    "citext": ["'AbC'", "'abc'"],
    "uuid": ["'A1111111-1111-1111-1111-11111111111f'"],
    "mood": ["'ok'", "'sad '", "'it''s \"fine\"'"],
    "json": ["""'{"a":  1.50,"a":2}'""", "'null'", "'\"x\"'", "'[1, 2.0]'"],
    "jsonb": [r"""'{"b":  1.50,"a":"\u00e9\n"}'""", "'null'", "'1e5'", "'12345678901234567890.10'"],
    "bytea": [r"'\x'", r"'\xdeadbeef00ff'", r"'\x00'", "decode(repeat('ab', 100000), 'hex')"],
    "date": ["'2026-01-02'", "'0001-01-01'", "'9999-12-31'", "'1582-10-04'", "'1582-10-10'", "'1500-02-28'"],
    "timestamp": [
        "'2026-01-02 03:04:05.678901'", "'2026-01-02 03:04:05'", "'2026-01-02 03:04:05.6'", "'0001-01-01'",
        "'9999-12-31 23:59:59.999999'", "'1500-02-28 12:00'", "'1969-12-31 23:59:59.999999'", "'2026-03-29 02:30'",
    ],
    "timestamp(3)": ["'2026-01-02 03:04:05.678901'"],
    "timestamp(0)": ["'2026-01-02 03:04:05.678901'"],
    "timestamptz": [
        "'2026-01-02 03:04:05.678901+02'", "'2026-01-02 03:04:05Z'", "'0001-01-01 00:00Z'", "'1850-01-01 12:00Z'",
        "'9999-12-31 23:59:59.999999Z'", "'1500-02-28 12:00Z'", "'1900-07-01 12:00 Europe/Amsterdam'",
    ],
    "timestamptz(3)": ["'2026-01-02 03:04:05.678901+02'"],
    "int4[]": ["'{}'", "'{1,NULL,3}'", "'[2:3]={1,2}'"],
    "int2[]": ["'{1,-2}'"],
    "int8[]": ["'{9223372036854775807,NULL}'"],
    "text[]": [
        "'{}'", """'{a,"b c",NULL,"NULL",""}'""", r"""ARRAY['q"uo\te','ünï😀',E'ctl\n\t\b\f\r\u0001\u007f\u0080/']""",
        "ARRAY['{x}','a,b']",
    ],
    "varchar(5)[]": ["'{abc,NULL}'"],
    "bool[]": ["'{t,f,NULL}'", "'{}'"],
    "whole": ["5"],
    "count": ["7"],
    "price": ["1.5"],
    "code": ["'ab'"],
    "list": ["'{1,2}'"],
}  # fmt: skip

REFUSED: dict[str, list[str]] = {
    "numeric(10,2)": ["'NaN'"],
    "numeric": ["'NaN'", "'Infinity'", "'-Infinity'"],
    "date": ["'infinity'", "'-infinity'", "'0001-12-31 BC'", "'10000-01-01'"],
    "timestamp": ["'infinity'", "'-infinity'", "'0044-03-15 BC'", "'10000-01-01'", "'294276-12-31 23:59:59'"],
    "timestamptz": ["'infinity'", "'-infinity'", "'0044-03-15 BC'", "'10000-01-02'"],
    "int4[]": ["'{{1,2},{3,4}}'", "'{{{1}}}'", "'{NULL}'"],
    "text[]": ["'{{a,b},{c,d}}'", "'{{{a}}}'"],
    "bool[]": ["'{{t},{f}}'"],
}
"""Values that a view cannot hold: both ways must say so."""


@dataclass(frozen=True)
class Told:
    """A server's values as both ways tell them: per table (as of ``ordered``) by the row's id."""

    source: PostgresSource
    relations: dict[str, Relation]
    messages: dict[tuple[str, int], Any]


def ordered(values: dict[str, list[str]], prefix: str) -> dict[str, str]:
    return {type: f"{prefix}{number}" for number, type in enumerate(values)}


GOOD, BAD = ordered(VALUES, "good"), ordered(REFUSED, "bad")


def tables() -> Iterator[str]:
    """One table per type, with a row per value and one of NULL."""
    yield from [*TYPES.split(";"), CITEXT]
    for type, table in [*GOOD.items(), *BAD.items()]:
        yield f"CREATE TABLE {table} (id int PRIMARY KEY, v {type})"
        yield f"ALTER TABLE {table} REPLICA IDENTITY FULL"


def rows() -> Iterator[str]:
    for names, values in ((GOOD, VALUES), (BAD, REFUSED)):
        for type, table in names.items():
            for id, value in enumerate([*values[type], "NULL"]):
                yield f"INSERT INTO {table} VALUES ({id}, {value})"


@pytest.fixture(scope="module")
def told(
    postgres: Servers, broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, Told]]:  # fmt: skip
    """Every version's server, with one Debezium in between; the database's own settings are awkward ones."""
    with ExitStack() as made:
        databases = {v: made.enter_context(database(postgres.shared(v), list(tables()), f"ty{v}")) for v in VERSIONS}
        topics = {v: broker.new_topic(f"types{v}") for v in VERSIONS}
        for opened in databases.values():
            prepare(opened)
        connectors = [Supervised(f"v{v}", debezium(databases[v], topics[v])) for v in VERSIONS]
        program = Program(java(), jar_folder("connect"))
        settings = {"bootstrap.servers": broker.bootstrap}
        folder = tmp_path_factory.mktemp("connect") / "connect"
        with running(Connect(folder, program, settings, connectors)):
            yield {v: tell(databases[v], v, topics[v], broker) for v in VERSIONS}


def prepare(opened: Database) -> None:
    for setting in ("timezone = 'America/New_York'", "datestyle = 'SQL, DMY'", "intervalstyle = 'sql_standard'"):
        opened.execute(f"ALTER DATABASE {opened.name} SET {setting}")
    opened.execute(f"CREATE PUBLICATION {opened.slot} FOR ALL TABLES")
    opened.execute(f"SELECT pg_create_logical_replication_slot('{opened.slot}', 'pgoutput')")


def debezium(opened: Database, topic: str) -> Any:
    section = opened.config()
    login = Login.parse("url", section.url)
    return connector(section, topic, login, "")


class running:  # noqa: N801 - read as a statement
    """Kafka Connect in a thread of its own, for the time of a block."""

    def __init__(self, connect: Connect):
        self.connect, self.stop, self.ready = connect, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=connect.run, args=(self.stop, self.ready.set), daemon=True)

    def __enter__(self) -> None:
        self.thread.start()
        assert self.ready.wait(90), self.connect.log.read_text()[-3000:]

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(30)


def tell(opened: Database, version: int, topic: str, broker: SharedBroker) -> Told:
    with opened.connect() as connection:
        for statement in rows():
            connection.execute(statement.encode())
    source = PostgresSource(f"v{version}", opened.config())
    token = source.barrier(None)  # type: ignore[arg-type]
    messages: dict[tuple[str, int], Any] = {}

    def arrived() -> bool:
        passed = False
        for message in broker.messages(topic):
            event = orjson.loads(message.value())
            if event.get("op") == "c":
                messages[event["source"]["table"], event["after"]["id"]] = event["after"]["v"]
            passed |= event.get("op") == "m"
        return passed

    eventually(arrived, 60, f"the barrier {token} comes out of {topic}")
    return Told(source, source.describe(), messages)


def answered(told: Told, table: str, ids: list[int]) -> pa.Array:
    """The values of these rows in the order of their ids, by one question."""
    snapshot = told.source.freeze(None)
    try:
        ask = Ask(told.source.name, table, ("id", "v"), ("id",), pa.table({"id": pa.array(ids, pa.int64())}))
        return told.source.ask(ask, snapshot).rows.sort_by("id")["v"].combine_chunks()
    finally:
        told.source.release(snapshot)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("type", VALUES)
def test_a_message_and_an_answer_tell_the_same_value(told: dict[int, Told], version: int, type: str) -> None:
    at, table = told[version], GOOD[type]
    column = at.relations[table].column("v")
    assert column is not None and not column.refused
    ids = list(range(len(VALUES[type]) + 1))
    answers = answered(at, table, ids)
    messages = debezium_column([at.messages[table, id] for id in ids], column)
    assert messages.type == answers.type == column.type.arrow
    # Compared bit by bit: NaN is itself, and a zero has no sign.
    assert [str(v) for v in messages.to_pylist()] == [str(v) for v in answers.to_pylist()]
    assert answers.null_count == 1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("type", "id"), [(type, id) for type in REFUSED for id in range(len(REFUSED[type]))])
def test_a_message_and_an_answer_refuse_the_same_value(
    told: dict[int, Told], version: int, type: str, id: int
) -> None:  # fmt: skip
    at, table = told[version], BAD[type]
    column = at.relations[table].column("v")
    assert column is not None
    with pytest.raises(Misfits):
        debezium_column([at.messages[table, id]], column)
    with pytest.raises(SourceError, match=rf"source v{version}: {table}\.v: .+ is no .+; correct the row"):
        answered(at, table, [id])
