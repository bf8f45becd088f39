"""The types a column may have, the same in every source, in Arrow, in Delta and in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa


class Kind(StrEnum):
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    TEXT = "text"
    BOOLEAN = "boolean"
    DATE = "date"
    TIMESTAMP = "timestamp"
    BINARY = "binary"
    NUMERIC = "numeric"  # exact, of any number of digits: a column or a step of a computation, never an output
    UNKNOWN = "unknown"  # a column whose declared type says nothing: no view may use it


_ARROW = {
    Kind.INTEGER: pa.int64(),
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.DATE: pa.date32(),
    Kind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    Kind.BINARY: pa.binary(),
    Kind.NUMERIC: pa.string(),  # as ``casts.numeric_text`` writes it: equal numbers are equal texts
}


@dataclass(frozen=True)
class Type:
    """A column's type; only decimals have precision and scale.

    A ``loose`` decimal comes of numbers of several scales: it tells each number, but not with how many digits behind
    the point PostgreSQL would write it.
    """

    kind: Kind
    precision: int = 0
    scale: int = 0
    loose: bool = False

    @property
    def arrow(self) -> pa.DataType:
        if self.kind is Kind.DECIMAL:
            return pa.decimal128(self.precision, self.scale)
        return _ARROW[self.kind]

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.kind is Kind.DECIMAL else self.kind.value


INTEGER = Type(Kind.INTEGER)
FLOAT = Type(Kind.FLOAT)
TEXT = Type(Kind.TEXT)
BOOLEAN = Type(Kind.BOOLEAN)
DATE = Type(Kind.DATE)
TIMESTAMP = Type(Kind.TIMESTAMP)
BINARY = Type(Kind.BINARY)
NUMERIC = Type(Kind.NUMERIC)
UNKNOWN = Type(Kind.UNKNOWN)


def decimal(precision: int, scale: int, loose: bool = False) -> Type:
    """The decimal type with that many digits in all, ``scale`` of them behind the point."""
    return Type(Kind.DECIMAL, precision, scale, loose)


@dataclass(frozen=True)
class Column:
    """A column; ``declared`` is its type in its source's own words, where messages and answers need it.

    ``refused`` says why no view may use it (then its type is ``UNKNOWN``), and after a semicolon what to do.
    """

    name: str
    type: Type
    declared: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Relation:
    """A table of a source as views may use it.

    ``key`` identifies a row by the values that a reader gets, except where its columns are ``nullable`` or ``blurred``:
    a source may let several rows have NULL there, or tell stored values apart that a reader gets as one. ``logged``
    are the columns whose old values the source's log tells when a row is changed or deleted; None means all.
    ``refused`` says why no view may use it, and after a semicolon what to do.
    """

    source: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    indexed: frozenset[str] = frozenset()  # columns that lead an index: a look-up by them is no scan
    nullable: frozenset[str] = frozenset()
    blurred: frozenset[str] = frozenset()
    logged: frozenset[str] | None = None
    refused: str = ""
    required: frozenset[str] = frozenset()  # columns that are known never to be NULL

    def column(self, name: str) -> Column | None:
        return next((c for c in self.columns if c.name == name), None)


Catalog = dict[tuple[str, str], Relation]
"""Every relation of every source, by (source, relation)."""
