"""Functions, arithmetic and numbers mean what they mean in PostgreSQL, by a table of expressions over a table of rows.

Each expression is computed by both evaluators and by a real server, on every row. What the server reports as an error
is NULL here. Results are compared by value and type, and wherever they can be cast to text, by their texts too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.e2e.postgres import VERSIONS, Database, Servers, database
from viewkeeper.algebra import construct
from viewkeeper.algebra.casts import fit, numeric_text
from viewkeeper.algebra.evaluate import evaluate
from viewkeeper.algebra.expressions import Expr
from viewkeeper.algebra.render import render
from viewkeeper.algebra.rows import evaluate_row
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    Column,
    Kind,
    Relation,
    Type,
    decimal,
)

pytestmark = pytest.mark.e2e


def _rows(texts: str) -> list[str | None]:
    return [None if text == "NULL" else text for text in texts.split("|")]


COLUMNS: dict[str, tuple[Type, str, list[str | None]]] = {
    "n": (INTEGER, "int8", _rows(
        '0|1|-1|2|7|-7|10|150|-150|9223372036854775807|NULL|5'
    )),
    "m": (INTEGER, "int8", _rows(
        '3|-2|0|4|2|-5|1|100|12|-1|2|-9223372036854775808'
    )),
    "k": (INTEGER, "int4", _rows(
        '3|-2|0|4|2|-5|1|100|12|-1|2|NULL'
    )),
    "f": (FLOAT, "float8", _rows(
        '0.5|1.5|2.5|-2.5|NaN|Infinity|1e20|123456789012345680|1e-5|0.1|NULL|-0.30000000000000004'
    )),
    "g": (FLOAT, "float8", _rows(
        '2|1e15|999999999999999|0.0001|1.0000000000000002|-Infinity|2.675|1e300|0|3.5|'
        '9007199254740993|5e-324'
    )),
    "d": (decimal(10, 2), "numeric(10,2)", _rows(
        '0|0.01|2.50|-2.50|99999999.99|-0.05|1.25|100|3|-7.77|NULL|12345.67'
    )),
    "e": (decimal(12, 4), "numeric(12,4)", _rows(
        '1|3|0.0001|7.1234|-99999999.9999|0|2.2250|-6.5|1000|NULL|0.3333|12'
    )),
    "w": (decimal(38, 10), "numeric(38,10)", _rows(
        '1|1234567890123456789012345678.0123456789|-0.0000000001|3|NULL|'
        '9223372036854775806.9999999999|0.5|-7|9999999999999999999999999999|0.3333333333|2|'
        '1000000000000000000'
    )),
    "x": (NUMERIC, "numeric", _rows(
        '1.50|123456789012345678901234567890123456789012345.5|-0.00|1e-50|3|NULL|1.5|0.05|-2.5|100|'
        '1e60|7.000'
    )),
    "y": (NUMERIC, "numeric", _rows(
        '1.5000|2|0|1e-50|3.0|1|-1.5|1e-30|2.5|1e2|7|NULL'
    )),
    "t": (TEXT, "text", _rows(
        '|a|abc|  xyz  |äöü€😀|a,b,,c|Straße|éa|ABCabcABC|NULL|x\'y"z\\|12345'
    )),
    "p": (TEXT, "text", _rows(
        '|b|c| |€|,|ß|e|abc|a|NULL|xyz'
    )),
    "b": (BOOLEAN, "bool", _rows(
        't|f|NULL|t|f|t|f|t|f|t|f|NULL'
    )),
    "day": (DATE, "date", _rows(
        '2024-02-29|0001-01-01|9999-12-31|1970-01-01|2000-12-31|2026-01-01|NULL|1999-12-31|'
        '2023-03-05|2021-01-03|0005-06-07|1582-10-10'
    )),
    "at": (TIMESTAMP, "timestamp", _rows(
        '2024-02-29 13:14:15.678901|0001-01-01|9999-12-31 23:59:59.999999|1969-12-31 23:59:59.999999|'
        '2000-12-31 00:00:01|NULL|2026-01-01 12:00|1999-12-31 11:59:59.5|2023-03-05 00:30:00.000001|'
        '2021-01-03 01:02:03.04|0009-06-07 08:09:10|2100-07-31 20:21:22.999'
    )),
    "z": (TIMESTAMP, "timestamptz", _rows(
        '2024-02-29 13:14:15.678901Z|2001-01-01 00:00Z|1900-12-31 23:59:59.999999Z|NULL|'
        '2000-12-31 00:00:01Z|1969-12-31 23:59:59.5Z|2026-01-01 12:00Z|1999-12-31 11:59:59.5+02|'
        '2023-03-05 00:30:00.000001Z|2021-01-03 01:02:03.04Z|0009-06-07 08:09:10Z|'
        '2100-07-31 20:21:22.999Z'
    )),
    "raw": (BINARY, "bytea", _rows(
        '\\x|\\x00ff|\\x616263|NULL|\\xc3a4|\\xc3a4|\\xc3a4|\\xc3a4|\\xc3a4|\\xc3a4|\\xc3a4|\\xc3a4'
    )),
}  # fmt: skip
"""Per column: its type here, its type there, and its value in each row."""

ROWS = 12
CATALOG = {("s", "r"): Relation("s", "r", tuple(Column(name, of) for name, (of, _, _) in COLUMNS.items()))}
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

NUMBERS = """
n / m; n % m; mod(n, m); n + m; n - m; n * m; -n; abs(n); sign(n); floor(n); ceil(n); ceiling(m); trunc(n);
round(n); round(n) / 2; floor(n) / 2; round(n, -2); round(n, 1); trunc(n, -1); round(m, -19); sqrt(n);
sqrt(abs(n)); round(f); floor(f); ceil(f); trunc(f); sign(f); abs(f); -f; round(g); floor(g); ceil(g); trunc(g);
sqrt(g); sqrt(abs(f)); cast(f as bigint); cast(g as bigint); cast(f as decimal(30, 10));
cast(g as decimal(38, 5)); cast(f * 3 as decimal(38, 18)); f + g; f - g; f * g; f / g; f + n; f / m; d + f;
f = g; f < g; f >= g; f <> g; f + 0.1; g = 3.5; f > n; greatest(f, g); least(f, g, n); cast(f as text);
cast(g as text); cast(f * 10 as text); cast(1 - g as text); cast(f / 3 as text); cast(n as float); concat(f, g);
round(d); round(d, 1); round(d, -1); round(d, 2); round(d, 4); trunc(d); trunc(d, 1); trunc(d, -1); floor(d);
ceil(d); sign(d); abs(d); -d; d + e; d - e; d * e; d % e; mod(d, e); d + n; d * n; d - 1; d * 1.5; n + 0.5;
n * 0.001; d % 3; mod(d, 0.3); n % 2.5; round(w); round(w, 1); round(w, 5); round(w, 9); round(w, -3);
trunc(w, 3); floor(w); ceil(w); sign(w); abs(w); -w; w - w; w % 7; d / 3; d / 7; d / 0.07; e / 3; d / 100;
1 / d > 0.5; d / n > 1; d / e < 0; n / 3.0 = 1; w / 3 > 1; d / 0; 10 / 4.0; 1.0 / 3;
cast(d / n as decimal(38, 20)); cast(d / e as decimal(38, 10)); cast(n / d as decimal(38, 8));
cast(w / d as decimal(38, 6)); cast(1 / d as decimal(38, 30)); cast(d * 100 / n as decimal(20, 2));
cast(n / 3.0 as decimal(38, 18)); round(d / e, 2) > 0; cast(w * w as decimal(38, 5));
cast(w * e as decimal(38, 14)); cast(round(d / e, 3) as decimal(20, 3)); cast(e / w as decimal(38, 18));
cast(d as integer); cast(e as bigint); cast(w as bigint); cast(d as float); cast(e / 3 as float);
cast(d as decimal(3, 1)); coalesce(d, 0); coalesce(d, e, n); greatest(d, e); least(d, e, 1); nullif(d, 2.5);
nullif(n, 0); coalesce(d, 0) / 100; coalesce(n, m, 0); case when n > 1 then d else e end; coalesce(d, f);
greatest(n, d); least(n, m, 3); greatest(n, NULL, m); nullif(d, e); nullif(f, g); d = e; d < n; d > f; w = n;
d in (2.5, 3, 100); n between d and e; cast('12.345' as decimal(10, 2)); cast('1e3' as decimal(10, 2));
round(9223372036854775806.9999999999999999999, 1); round(99999999999999999999999999999999999.99, 1);
round(0.05, 1); round(2.5); round(-2.5); round(1.005, 2); trunc(-1.999, 2); floor(-0.5); ceil(-0.5);
round(cast(2.5 as float)); cast(2.5 as integer); cast(-2.5 as integer); cast(cast(2.5 as float) as integer);
cast(cast(3.5 as float) as integer)
"""

NUMERICS = """
x = y; x < y; x >= y; x <> 3; x > 1.5; x in (3, 1.5, 100); x between 1 and 3; x = n; x < d; x > f;
x is not distinct from y; cast(x as decimal(38, 10)); cast(x as decimal(10, 2)); cast(x as bigint);
cast(x as float); cast(y as decimal(38, 30)); cast(x + y as decimal(38, 2)); cast(x - y as decimal(38, 20));
cast(x * y as decimal(38, 10)); cast(x % 7 as decimal(38, 5)); cast(round(x, 1) as decimal(30, 1));
cast(floor(x) as decimal(30, 0)); cast(ceil(y) as decimal(30, 0)); sign(x); sign(y);
cast(abs(x) as decimal(30, 5)); cast(-x as decimal(30, 5)); cast(trunc(x, 1) as decimal(30, 1)); x + y > 3;
x * n > 10; -x < y; cast(coalesce(x, y, 0) as decimal(38, 3)); cast(greatest(x, y) as decimal(38, 3));
cast(least(x, d, n) as decimal(38, 3)); cast(nullif(x, y) as decimal(38, 3));
cast(case when x > 1 then x else d end as decimal(38, 3)); coalesce(x, f); x is null;
cast(cast(f as numeric) as decimal(38, 16)); cast(round(cast(f as numeric), 2) as decimal(38, 2));
cast(t as numeric) > 5; cast(cast('  12.50 ' as numeric) as decimal(10, 1)); cast(x as decimal(12, 2)) / 3;
cast(mod(x, y) as decimal(38, 3))
"""

TEXTS = """
length(t); char_length(t); character_length(p); octet_length(t); bit_length(t); octet_length(raw); length(raw);
lower(p); reverse(t); left(t, 2); left(t, -1); left(t, k); left(t, 0); right(t, 2); right(t, -1); right(t, 0);
right(t, k); left(t, 100); right(t, -100); substr(t, 2); substr(t, -1, 3); substr(t, 0);
substring(t from 2 for 2); substring(t, k, 3); substr(t, 1, k); substring(t for 2); trim(t); ltrim(t); rtrim(t);
btrim(t); trim(both 'ax ' from t); trim(leading 'xa ' from t); trim(trailing from t); btrim(t, p); ltrim(t, p);
rtrim(t, p); trim('' from t); trim(t, ' z'); btrim(t, ''); replace(t, p, '-'); replace(t, '', 'x');
replace(t, 'b', p); replace('aaa', 'aa', 'b'); translate(t, 'abc', 'xy'); translate(t, 'aa', 'xy');
strpos(t, p); position(p in t); position('' in t); split_part(t, ',', 2); split_part(t, ',', -1);
split_part(t, p, 1); split_part(t, ',', 0); split_part(t, '', 1); split_part(t, '', 2); split_part(t, ',', k);
split_part(t, p, -2); lpad(t, 6); lpad(t, 6, p); rpad(t, 7, 'xy'); rpad(t, 2); lpad(t, 2, 'x'); lpad(t, -1);
lpad(t, 0); lpad(t, 10, ''); rpad(t, 9, p); repeat(t, 3); repeat(t, 0); repeat(p, -1); starts_with(t, p);
starts_with(t, ''); md5(t); ascii(t); ascii(p); md5(p || t); concat(b); concat(b, t, n); concat(t, NULL, p);
concat_ws(',', t, b, p); concat_ws(p, t, n, d); concat(d, ' ', n); concat(day); concat_ws(NULL, t);
coalesce(t, p, 'z'); nullif(t, p); nullif(t, ''); greatest('b', 'a'); concat(NULL); concat_ws('-', NULL, NULL);
upper('abc'); lower('ABC'); t || p; n || t; d || t; concat(not b); b || t
"""

TIMES = """
extract(millennium from at); extract(century from at); extract(decade from at); extract(year from at);
extract(isoyear from at); extract(quarter from at); extract(month from at); extract(week from at);
extract(day from at); extract(doy from at); extract(dow from at); extract(isodow from at);
extract(hour from at); extract(minute from at); extract(second from at); extract(epoch from at);
extract(milliseconds from at); extract(microseconds from at); extract(millennium from day);
extract(century from day); extract(decade from day); extract(year from day); extract(isoyear from day);
extract(quarter from day); extract(month from day); extract(week from day); extract(day from day);
extract(doy from day); extract(dow from day); extract(isodow from day); extract(epoch from day);
extract(hour from z); extract(epoch from z); extract(day from z); extract(week from z); date_part('year', at);
date_part('month', at); date_part('week', at); date_part('hour', at); date_part('second', at);
date_part('milliseconds', at); date_part('microseconds', at); date_part('epoch', at); date_part('year', day);
date_part('hour', day); date_part('epoch', day); date_part('DOW', day); date_trunc('millennium', at);
date_trunc('century', at); date_trunc('decade', at); date_trunc('year', at); date_trunc('quarter', at);
date_trunc('month', at); date_trunc('week', at); date_trunc('day', at); date_trunc('hour', at);
date_trunc('minute', at); date_trunc('second', at); date_trunc('milliseconds', at);
date_trunc('microseconds', at); date_trunc('day', z); date_trunc('week', z); date_trunc('hour', z);
date_trunc('MONTH', z); date_trunc('month', day); extract(year from day) / 4;
extract(year from day) * 12 + extract(month from day); to_char(at, 'YYYY-MM-DD HH24:MI:SS.US');
to_char(at, 'yyyymmdd'); to_char(at, 'YY Q WW IW IYYY DDD D ID'); to_char(at, 'Dy DY dy');
to_char(at, 'Mon MON mon HH12:MI AM'); to_char(at, 'HH:MI pm MS'); to_char(at, 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
to_char(at, ''); to_char(day, 'DD.MM.YYYY'); to_char(z, 'HH24:MI'); make_date(2024, 2, k); make_date(k, 2, 3);
make_date(k, k, k); day + k; day - k; k + day; day - date '2000-01-01'; date '2024-03-01' - day;
day > date '2000-01-01'; cast(at as date); cast(day as timestamp); greatest(day, date '2000-01-01');
least(at, z); day = at
"""

TABLES = {"numbers": NUMBERS, "numerics": NUMERICS, "texts": TEXTS, "times": TIMES}

SETUP = f"""
CREATE TABLE r (id int, {", ".join(f"{name} {declared}" for name, (_, declared, _) in COLUMNS.items())});
CREATE FUNCTION told(expression text, row_id int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE found text;
BEGIN
    EXECUTE format('SELECT (%s)::text FROM r WHERE id = $1', expression) INTO found USING row_id;
    RETURN found;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;
"""


def sql_value(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


@pytest.fixture(scope="module", params=sorted({min(VERSIONS), max(VERSIONS)}))
def server(request: pytest.FixtureRequest, postgres: Servers) -> Iterator[Database]:
    rows = [
        f"INSERT INTO r VALUES ({i}, {', '.join(sql_value(values[i]) for _, _, values in COLUMNS.values())})"
        for i in range(ROWS)
    ]
    with database(postgres.shared(request.param), [SETUP, *rows]) as made:
        made.execute(f"ALTER DATABASE {made.name} SET timezone = 'UTC'")
        yield made


def value(text: str | None, of: Type) -> Any:
    """PostgreSQL's text of a value of a type."""
    if text is None:
        return None
    match of.kind:
        case Kind.INTEGER:
            return int(text)
        case Kind.FLOAT:
            return _FLOATS[text] if text in _FLOATS else float(text) + 0.0
        case Kind.DECIMAL | Kind.NUMERIC:
            return None if text == "NaN" else fit(Decimal(text), of) if of.kind is Kind.DECIMAL else Decimal(text)
        case Kind.BOOLEAN:
            return text in ("t", "true")
        case Kind.DATE:
            return date.fromisoformat(text) if "BC" not in text and len(text) == 10 else None
        case Kind.TIMESTAMP:
            return None if "BC" in text else _instant(text)
        case Kind.BINARY:
            return bytes.fromhex(text.removeprefix("\\x"))
    return text


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)


WORLD = {name: [value(text, of) for text in values] for name, (of, _, values) in COLUMNS.items()}
ARRAYS = {
    name: pa.array(
        [None if v is None else numeric_text(v) for v in WORLD[name]] if of == NUMERIC else WORLD[name], of.arrow
    )
    for name, (of, _, _) in COLUMNS.items()
}


def expression(sql: str) -> Expr:
    return parse_view("v", f"SELECT {sql} AS v FROM s.r AS r", CATALOG).outputs[0].expr


def computed(expr: Expr) -> list[Any]:
    """The values on all rows, once both evaluators agree."""
    by_arrow = evaluate(expr, lambda _, name: ARRAYS[name], ROWS).to_pylist()
    by_rows = [evaluate_row(expr, lambda _, name, i=i: WORLD[name][i]) for i in range(ROWS)]
    assert [written(v) for v in by_arrow] == [written(v) for v in by_rows], render(expr)
    return by_rows


def written(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else repr(value)


SAME_TYPES = {
    Kind.INTEGER: {20, 21, 23},
    Kind.FLOAT: {701},
    Kind.DECIMAL: {1700},
    Kind.TEXT: {25},
    Kind.BOOLEAN: {16},
    Kind.DATE: {1082},
    Kind.TIMESTAMP: {1114, 1184},
    Kind.BINARY: {17},
}
"""The ids of PostgreSQL's types that are one type here."""


def told(server: Database, sql: str) -> tuple[int, list[str | None]]:
    """PostgreSQL's type of an expression, and its text on every row."""
    with server.connect() as connection:
        described = connection.execute(f"SELECT {sql} FROM r LIMIT 0".encode()).description
        assert described
        texts = connection.execute("SELECT told(%s, id) FROM r ORDER BY id", [sql]).fetchall()
    return described[0].type_code, [text for (text,) in texts]


def different(server: Database, sql: str) -> list[str]:
    """What is not the same here and there."""
    expr = expression(sql)
    kind, texts = told(server, sql)
    found = [] if kind in SAME_TYPES[expr.type.kind] else [f"{sql}: {expr.type} here, type {kind} there"]
    for row, (here, there) in enumerate(zip(computed(expr), (value(t, expr.type) for t in texts), strict=True)):
        if not (here == there or (here != here and there != there)):
            found.append(f"{sql}, row {row}: {here} here, {there} there")
    if expr.type.kind in (Kind.FLOAT, Kind.DECIMAL):
        found += different_texts(expr, sql, texts)
    return found


def different_texts(expr: Expr, sql: str, texts: list[str | None]) -> list[str]:
    """There is no negative zero here, and no NaN among decimals."""
    other = {"-0": "0"} if expr.type == FLOAT else {"NaN": None}
    with suppress(construct.TypeMismatchError):
        pairs = zip(computed(construct.cast(expr, TEXT)), (other.get(text, text) for text in texts), strict=True)
        return [f"{sql} as text: {here} here, {there} there" for here, there in pairs if here != there]
    return []


@pytest.mark.parametrize("table", TABLES)
def test_functions_mean_what_they_mean_in_postgresql(server: Database, table: str) -> None:
    listed = [sql.strip() for sql in TABLES[table].replace("\n", " ").split("; ")]
    problems = [problem for sql in listed for problem in different(server, sql)]
    assert not problems, "\n".join(problems)
