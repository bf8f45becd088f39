"""A real PostgreSQL beside both of our evaluators, over the same rows: what does an expression mean to each?"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.types.string import TextLoader

from tests.e2e.postgres import Database
from viewkeeper.algebra.evaluate import evaluate
from viewkeeper.algebra.expressions import Expr
from viewkeeper.algebra.rows import evaluate_row
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import Catalog, Kind
from viewkeeper.errors import ViewError
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.messages import Ask

_NO_SUCH_SQL = ("42", "0A")  # classes of SQLSTATE: there is no such syntax, operator, function or feature

_NEGATIVE_ZERO = re.compile(r"-0(?![.\d])")

ERROR = object()
"""What a row has for which PostgreSQL fails. Views cannot stop at a row: there they have NULL, or more room."""


class _Unpadded(TextLoader):
    """A value as its text without trailing spaces, which is what a char(n) is here."""

    def load(self, data: Any) -> str:
        return str(super().load(data)).rstrip(" ")


class Verdict(Enum):
    SAME = "the same"
    REFUSED = "refused here"
    OURS = "refused by PostgreSQL alone"


class Differs(AssertionError):
    """An expression that means something else."""


@dataclass
class Oracle:
    """The table ``t`` of a database, with the integer key ``id``, as a view sees it through a real source."""

    db: psycopg.Connection[Any]
    catalog: Catalog
    rows: pa.Table

    @classmethod
    def of(cls, database: Database) -> Oracle:
        source = PostgresSource("s", database.config())
        relation = source.describe(["t"])["t"]
        usable = tuple(c.name for c in relation.columns if c.type.kind is not Kind.UNKNOWN)
        snapshot = source.freeze(None)
        try:
            answer = source.ask(Ask(source="s", relation="t", columns=usable, key=(), keys=None), snapshot)
        finally:
            source.release(snapshot)
            source.close()
        db = database.connect()
        db.execute("SET timezone = 'UTC'")
        for type_ in ("bpchar", "json", "jsonb"):
            db.adapters.register_loader(type_, _Unpadded)
        return cls(db, {("s", "t"): relation}, answer.rows.sort_by("id"))

    def judge(self, sql: str) -> Verdict:
        """Whether an expression has one meaning; raises ``Differs`` where it has two."""
        try:
            view = parse_view("v", f"SELECT {sql} AS x FROM s.t", self.catalog)
        except ViewError as error:
            placeless = [str(p) for p in error.problems if "line 1, column" not in str(p)]
            if placeless:
                raise Differs(f"{sql}\n  is refused without a place: {placeless}") from None
            return Verdict.REFUSED
        expr = view.outputs[0].expr
        ours = self._evaluated(sql, expr)
        try:
            theirs = self._computed(sql)
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] in _NO_SUCH_SQL:
                return Verdict.OURS
            raise
        for row, (here, there) in enumerate(zip(ours, theirs, strict=True)):
            if there is not ERROR and not _same(here, there):
                raise Differs(f"{sql}\n  is {here!r} here and {there!r} in PostgreSQL, of {self._shown(expr, row)}")
        return Verdict.SAME

    def _evaluated(self, sql: str, expr: Expr) -> list[Any]:
        columns = {name: self.rows[name].combine_chunks() for name in self.rows.column_names}
        arrays = evaluate(expr, lambda _, name: columns[name], len(self.rows)).to_pylist()
        lists = {ref.column: self.rows[ref.column].to_pylist() for ref in expr.columns}
        by_row = [evaluate_row(expr, lambda _, name, i=i: lists[name][i]) for i in range(len(self.rows))]
        for one, other in zip(arrays, by_row, strict=True):
            if not _same(one, other):
                raise Differs(f"{sql}\n  is {one!r} in columns and {other!r} in rows")
        return arrays

    def _computed(self, sql: str) -> list[Any]:
        try:
            return [value for (value,) in self.db.execute(f"SELECT {sql} AS x FROM t ORDER BY id".encode()).fetchall()]
        except psycopg.DataError:
            return [self._one(sql, id) for id in self.rows["id"].to_pylist()]

    def _one(self, sql: str, id: int) -> Any:
        try:
            ((value,),) = self.db.execute(f"SELECT {sql} AS x FROM t WHERE id = {id}".encode()).fetchall()
        except psycopg.DataError:
            return ERROR
        return value

    def _shown(self, expr: Expr, row: int) -> str:
        return ", ".join(f"{c} = {self.rows[c][row].as_py()!r}" for c in sorted({ref.column for ref in expr.columns}))


def _same(ours: Any, theirs: Any) -> bool:
    """No decimal here is NaN: it is NULL. A timestamp is one in UTC. −0.0 is 0.0."""
    if isinstance(theirs, Decimal) and not theirs.is_finite():
        return ours is None
    if isinstance(theirs, datetime):
        theirs = theirs.replace(tzinfo=theirs.tzinfo or UTC)
    if isinstance(ours, float) and isinstance(theirs, float):
        return ours == theirs or (math.isnan(ours) and math.isnan(theirs))
    if isinstance(ours, bool) or isinstance(theirs, bool) or ours is None or theirs is None:
        return ours is theirs
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours == theirs or ours == _NEGATIVE_ZERO.sub("0", theirs)
    if type(ours) is not type(theirs) and not isinstance(theirs, int | Decimal | bytes):
        return str(theirs) == str(ours)
    return bool(ours == theirs)
