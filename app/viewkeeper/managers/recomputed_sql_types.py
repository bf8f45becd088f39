"""DuckDB's types beside ours: how a relation's columns are declared to it, and what its results become."""

from __future__ import annotations

import re

from viewkeeper.algebra.types import BINARY, BOOLEAN, DATE, FLOAT, INTEGER, TEXT, TIMESTAMP, Kind, Type, decimal

_DECLARED = {
    Kind.INTEGER: "BIGINT",
    Kind.FLOAT: "DOUBLE",
    Kind.TEXT: "VARCHAR",
    Kind.BOOLEAN: "BOOLEAN",
    Kind.DATE: "DATE",
    Kind.TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    Kind.BINARY: "BLOB",
}

_RESULTS = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"), INTEGER),
    # Wider than 64 bits, as a SUM of integers is. 38 digits hold every sum of 64-bit integers that can be counted.
    **dict.fromkeys(("UBIGINT", "HUGEINT", "UHUGEINT"), decimal(38, 0)),
    **dict.fromkeys(("FLOAT", "DOUBLE"), FLOAT),
    "VARCHAR": TEXT,
    "BOOLEAN": BOOLEAN,
    "DATE": DATE,
    # A timestamp without time zone is one in UTC, as everywhere here.
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"), TIMESTAMP),
    "BLOB": BINARY,
}

_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")

WIDER = {
    **dict.fromkeys(("TINYINT", "INT1", "SMALLINT", "INT2", "SHORT", "INTEGER", "INT", "INT4", "SIGNED"), "BIGINT"),
    **dict.fromkeys(("FLOAT", "FLOAT4", "REAL"), "DOUBLE"),
}
"""What a cast to a narrow number means here: an integer of any SQL width is 64 bits wide, and a float is a double."""


def declared(type_: Type) -> str:
    """A column's type as DuckDB calls it."""
    if type_.kind is Kind.DECIMAL:
        return f"DECIMAL({type_.precision},{type_.scale})"
    return _DECLARED[type_.kind]


def result(described: str) -> Type | None:
    """What a result of a DuckDB type becomes; None if it has no natural type here."""
    found = _DECIMAL.fullmatch(described)
    return decimal(int(found[1]), int(found[2])) if found else _RESULTS.get(described)


def delivered(name: str, type_: Type) -> str:
    """The expression that gives a result column as its type; dates outside the years 1 to 9999 are NULL."""
    match type_.kind:
        case Kind.DATE:
            return f"CASE WHEN {name} BETWEEN DATE '0001-01-01' AND DATE '9999-12-31' THEN {name} END"
        case Kind.TIMESTAMP:
            first, last = "'0001-01-01 00:00:00+00'", "'9999-12-31 23:59:59.999999+00'"
            instant = f"CAST({name} AS TIMESTAMP WITH TIME ZONE)"
            return f"CASE WHEN {instant} BETWEEN TIMESTAMPTZ {first} AND TIMESTAMPTZ {last} THEN {instant} END"
    return f"TRY_CAST({name} AS {declared(type_)})"


def quoted(name: str) -> str:
    """A name as SQL, whatever it is made of."""
    return '"' + name.replace('"', '""') + '"'
