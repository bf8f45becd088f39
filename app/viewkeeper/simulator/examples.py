"""The papers' worked examples as histories: their data, and the order of events that they tell.

strobe-1996, Examples 1, 3, 5 and 6 are one workload under different algorithms and timings; Example 4 is a transaction
that Strobe shows half of. sweep-1997, section 5.2 and Figure 5, is three concurrent updates.
"""

from __future__ import annotations

from collections.abc import Mapping

from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.algorithms.protocol import Op
from viewkeeper.simulator.history import Commit, Deliver, Evaluate, History, Transaction, Workload


def _relation(source: str, name: str, columns: str, key: str = "") -> Relation:
    return Relation(source, name, tuple(Column(c, INTEGER) for c in columns.split()), tuple(key.split()))


_THREE_SOURCES = Workload(
    (_relation("x", "r1", "A B", "A"), _relation("y", "r2", "B C", "B"), _relation("z", "r3", "C D", "C")),
    "SELECT r1.A, r2.B, r3.C, r3.D FROM x.r1, y.r2, z.r3 WHERE r1.B = r2.B AND r2.C = r3.C",
    {("x", "r1"): ((1, 2),), ("y", "r2"): (), ("z", "r3"): ((3, 4),)},
    (Transaction("U1", {"y": (Op("r2", (2, 3), 1),)}), Transaction("U2", {"x": (Op("r1", (1, 2), -1),)})),
)
_ONE_TRANSACTION = Workload(
    (_relation("x", "r1", "A B", "A"),),
    "SELECT A, B FROM x.r1",
    {("x", "r1"): ((1, 2),)},
    (Transaction("T1", {"x": (Op("r1", (1, 2), -1), Op("r1", (3, 4), 1))}),),
)
_THREE_UPDATES = Workload(
    (_relation("s1", "R1", "A B"), _relation("s2", "R2", "C D"), _relation("s3", "R3", "E F")),
    "SELECT R2.D, R3.F FROM s1.R1, s2.R2, s3.R3 WHERE R1.B = R2.C AND R2.D = R3.E",
    {("s1", "R1"): ((1, 3), (2, 3)), ("s2", "R2"): ((3, 7),), ("s3", "R3"): ((5, 6), (7, 8))},
    (
        Transaction("ΔR2", {"s2": (Op("R2", (3, 5), 1),)}),
        Transaction("ΔR3", {"s3": (Op("R3", (7, 8), -1),)}),
        Transaction("ΔR1", {"s1": (Op("R1", (2, 3), -1),)}),
    ),
)

_ANSWERED_BEFORE = (
    *(Commit(0), Deliver("y"), Evaluate("x"), Deliver("x")),
    *(Commit(1), Deliver("x"), Evaluate("z"), Deliver("z")),
)
"""x answers before it deletes."""
_ANSWERED_AFTER = (Commit(0), Deliver("y"), Commit(1), Deliver("x"), Evaluate("x"), Deliver("x"))
"""x deletes before it answers."""
_CONCURRENT = (
    *(Commit(0), Deliver("s2"), Commit(1), Deliver("s3"), Commit(2), Deliver("s1")),
    *(Evaluate("s1"), Deliver("s1"), Evaluate("s3"), Deliver("s3")),
)

EXAMPLES: Mapping[str, History] = {
    "strobe-1996-example-1": History(_THREE_SOURCES, "convergent", {"keyed": True}, _ANSWERED_BEFORE),
    "strobe-1996-example-3": History(_THREE_SOURCES, "strobe", {}, _ANSWERED_BEFORE),
    "strobe-1996-example-4": History(_ONE_TRANSACTION, "strobe", {}, (Commit(0), Deliver("x"))),
    "strobe-1996-example-5": History(_THREE_SOURCES, "c_strobe", {}, _ANSWERED_BEFORE),
    "strobe-1996-example-6": History(_THREE_SOURCES, "c_strobe", {}, _ANSWERED_AFTER),
    "sweep-1997-figure-5": History(_THREE_UPDATES, "sweep_sequential", {}, _CONCURRENT),
}
