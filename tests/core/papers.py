"""The papers' examples as workloads, by literal data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from viewkeeper.algebra.types import Relation
from viewkeeper.algorithms.protocol import Op
from viewkeeper.simulator.history import Transaction, Workload

from .lab_worlds import relation

Rows = Sequence[tuple[Any, ...]]


def workload(sql: str, relations: Mapping[Relation, Rows], *updates: tuple[str, str, str, tuple[Any, ...]]) -> Workload:
    """A workload of single updates, written as ("y", "+", "r2", (2, 3))."""
    transactions = [
        Transaction(f"U{k}", {source: (Op(name, row, 1 if sign == "+" else -1),)})
        for k, (source, sign, name, row) in enumerate(updates, start=1)
    ]
    initial = {(r.source, r.name): tuple(rows) for r, rows in relations.items()}
    return Workload(tuple(relations), sql, initial, tuple(transactions))


def figure_5(shown: str = "R2.D, R3.F") -> Workload:
    """sweep-1997, Figure 5: three relations, and the updates ΔR2, ΔR3, ΔR1."""
    return workload(
        f"SELECT {shown} FROM one.R1 AS R1, two.R2 AS R2, three.R3 AS R3 WHERE R1.B = R2.C AND R2.D = R3.E",
        {
            relation("one", "R1", "A B"): [(1, 3), (2, 3)],
            relation("two", "R2", "C D"): [(3, 7)],
            relation("three", "R3", "E F"): [(5, 6), (7, 8)],
        },
        ("two", "+", "R2", (3, 5)),
        ("three", "-", "R3", (7, 8)),
        ("one", "-", "R1", (2, 3)),
    )


FIGURE_5_STATES = [{(7, 8): 2}, {(5, 6): 2, (7, 8): 2}, {(5, 6): 2}, {(5, 6): 1}]


def lemma_1() -> Workload:
    """The counterexample to revisit-2001, Lemma 1: a self-join whose new row meets an old one."""
    return workload(
        "SELECT x.a, x.b, y.b AS c FROM s.R x JOIN s.R y ON x.b = y.a",
        {relation("s", "R", "a b"): [(1, 2)]},
        ("s", "+", "R", (2, 3)),
    )


def theorem_2() -> Workload:
    """The counterexample to revisit-2001, Theorem 2: a second copy needs rows that the first one did not bring."""
    return workload(
        "SELECT S.x, S.y, p.b AS z, q.b AS w FROM t.S S JOIN s.R p ON S.y = p.a JOIN s.R q ON p.b = q.a",
        {relation("t", "S", "x y"): [], relation("s", "R", "a b"): [(1, 2), (2, 3)]},
        ("t", "+", "S", (0, 1)),
    )
