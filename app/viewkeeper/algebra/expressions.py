"""Expressions over the columns of a view's occurrences: what a WHERE keeps and a SELECT shows.

An expression means the same everywhere: sources only ever fetch columns, and every value is computed here,
by ``evaluate`` (Arrow arrays) or ``rows`` (one Python row). The two are tested against each other. The
meaning:

- **No expression fails.** What other databases report as an error while a query runs is NULL: division or
  modulo by zero, a result outside 64-bit integers or outside its decimal type, a cast of malformed text, a
  date outside the years 1 to 9999. A streaming view cannot stop at a row.
- **NULL** is SQL's: a strict operation on NULL is NULL; AND, OR, NOT and IN are three-valued; ``x NOT IN
  (…, NULL)`` is never true; IS [NOT] DISTINCT FROM is never NULL. ``||`` with NULL is NULL, ``concat``
  skips NULLs.
- **Integers** are 64-bit and never wrap. ``/`` truncates toward zero, ``%`` takes the sign of the dividend.
- **Decimals** have at most 38 digits and round half away from zero. ``+ −`` keep the larger scale; ``×`` adds the
  scales; ``%`` has the larger; ``/`` has, row by row, the digits that PostgreSQL gives it: at least 16 significant
  ones. An integer beside a decimal is a decimal. A result that no type of 38 digits holds whatever its operands are
  is a **numeric**, which has any number of digits: it is compared, computed with and rounded exactly, but an output
  must cast it to a decimal. So is a column that PostgreSQL declares as bare ``numeric``. NaN has no value in either.
- The digits with which PostgreSQL writes a number that was chosen among several (CASE, coalesce) or divided depend on
  where it came from; its cast to text is refused until a cast to a decimal says how many are wanted.
- **Floats** are IEEE doubles; any number beside a float is one, also where they are compared. NaN equals NaN
  and is greater than everything else; −0.0 is 0.0, and no result is ever −0.0. Division by zero (but not of NaN),
  overflow and underflow are NULL here too. ``round`` takes halves to the even neighbour; with places,
  which PostgreSQL does not offer, it goes by the first 15 digits, half away from zero. ``floor``, ``ceil``, ``trunc``,
  ``round`` and ``sign`` of an integer are floats, as in PostgreSQL; with places, they are decimals.
- **Text** compares by code point; ``length``, ``substr`` and all other functions count code points from 1. ``lower``
  and ``upper`` are Unicode's full mappings. LIKE is case-sensitive; its escape character is a backslash unless
  ESCAPE names another, or none: ``ESCAPE ''``.
  ``concat`` writes truth values as ``t`` and ``f``, casts and ``||`` as ``true`` and ``false``.
- **Moments** are in UTC: ``date_trunc``, ``extract``, ``date_part``, ``to_char`` and casts take a timestamp with time
  zone as a session of PostgreSQL in UTC does. ``extract`` gives decimals, ``date_part`` floats.
- **Dates** beside timestamps mean midnight UTC; ``date ± integer`` counts days, ``date − date`` is an
  integer.
- **Casts**: see ``casts``. An integer of any SQL width is 64 bits wide here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

from viewkeeper.algebra.types import BOOLEAN, Type

CompareOp = OneOf["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
ArithmeticOp = OneOf["+", "-", "*", "/", "%"]


class Expr:
    """A typed expression; immutable, hashable, and equal to another exactly if both are built alike.

    Nodes are built by ``construct``, which checks types and inserts the casts that the rules above imply; an
    evaluator may rely on that.
    """

    type: Type

    @property
    def children(self) -> tuple[Expr, ...]:
        """The operands, in the order in which ``rows.apply`` takes their values."""
        return ()

    @property
    def columns(self) -> frozenset[ColumnRef]:
        """Every column the expression reads."""
        return frozenset[ColumnRef]().union(*(child.columns for child in self.children))


class Predicate(Expr):
    """An expression that is true, false or NULL."""

    type: Type = BOOLEAN


@dataclass(frozen=True)
class ColumnRef(Expr):
    """A column of one occurrence."""

    occurrence: int
    column: str
    type: Type

    @property
    def columns(self) -> frozenset[ColumnRef]:
        return frozenset({self})


@dataclass(frozen=True)
class Literal(Expr):
    """A constant: int, float, Decimal, str, bool, date, datetime (UTC), bytes, or None for NULL."""

    value: Any
    type: Type


@dataclass(frozen=True)
class And(Predicate):
    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True)
class Or(Predicate):
    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args


@dataclass(frozen=True)
class Not(Predicate):
    arg: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@dataclass(frozen=True)
class IsNull(Predicate):
    arg: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@dataclass(frozen=True)
class Compare(Predicate):
    """Two sides of one kind (decimals of any scale), or an integer beside a decimal."""

    op: CompareOp
    left: Expr
    right: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class InList(Predicate):
    """``value IN (items)``; every item is comparable with the value as in ``Compare``."""

    value: Expr
    items: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value, *self.items)


@dataclass(frozen=True)
class Like(Predicate):
    value: Expr
    pattern: Expr
    escape: str | None = "\\"  # one character, or None

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value, self.pattern)


@dataclass(frozen=True)
class Arithmetic(Expr):
    """Sides of one kind: integers, floats, decimals of any scale; or a date and an integer, or two dates."""

    op: ArithmeticOp
    left: Expr
    right: Expr
    type: Type

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


@dataclass(frozen=True)
class Cast(Expr):
    arg: Expr
    type: Type

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@dataclass(frozen=True)
class Case(Expr):
    """The first result whose condition is true, else the default; all of one type, or exact numbers of several."""

    conditions: tuple[Expr, ...]
    results: tuple[Expr, ...]
    default: Expr
    type: Type

    @property
    def children(self) -> tuple[Expr, ...]:
        return (*self.conditions, *self.results, self.default)


@dataclass(frozen=True)
class Call(Expr):
    """A function of ``functions.FUNCTIONS``, the operator ``||`` or ``negate``, or a real ``widened`` to its double."""

    function: str
    args: tuple[Expr, ...]
    type: Type

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args


def conjuncts(predicate: Expr | None) -> Iterator[Expr]:
    """The conditions that must all hold for the predicate to hold."""
    if isinstance(predicate, And):
        for arg in predicate.args:
            yield from conjuncts(arg)
    elif predicate is not None:
        yield predicate


def conjunction(conditions: tuple[Expr, ...] | list[Expr]) -> Expr | None:
    """One predicate for all the conditions, each kept once; None where there is none."""
    distinct = tuple(dict.fromkeys(conditions))
    return And(distinct) if len(distinct) > 1 else next(iter(distinct), None)
