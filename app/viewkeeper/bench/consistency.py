"""The streaming-consistency test at size: real capture, real job, every cut checked."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from viewkeeper.bench.consistency_check import check
from viewkeeper.bench.consistency_world import BANK, LEDGER, TABLES, VIEWS, Books, Writer, kept
from viewkeeper.bench.plan import Figures
from viewkeeper.bench.telling import Teller
from viewkeeper.local.demo.children import Child
from viewkeeper.messages import Reached
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader

PATIENCE = 3600.0
"""Seconds after which the job is given up."""

_EVERY = "1s"
_PAYMENTS_A_COMMIT = 20
_PAYMENTS_AN_ACCOUNT = 50
_POLL = 0.25  # a look at the warehouse takes time from the job


def bench_consistency(folder: Path, bootstrap: str, payments: int, teller: Teller) -> Figures:
    """Makes so many payments while the job keeps up; then looks at every cut. Violations are printed, too."""
    bank = Bank(folder, bootstrap)
    bank.create()
    writer = Writer(bank.connect, max(10, payments // _PAYMENTS_AN_ACCOUNT), seed=1)
    bank.initialize()
    with bank.running("capture"), bank.running("run") as job:
        writer.write(_PAYMENTS_A_COMMIT)
        bank.await_all(job, writer.books)  # it runs, and is warm
        begin = time.perf_counter()
        with teller.told(f"{payments:,} payments are made, some corrected or taken back, accounts renamed"):
            writer.write(payments, _PAYMENTS_A_COMMIT)
        written = time.perf_counter()
        with teller.told("the last of them come into a cut"):
            bank.await_all(job, writer.books)
        end = time.perf_counter()
    with teller.told("every cut is checked"):
        report = check(bank.warehouse, writer.books)
    teller.console.print(str(report), highlight=False)
    return {
        "consistency_payments": float(payments),
        "consistency_speed": payments / (end - begin),
        "consistency_written": payments / (written - begin),
        "consistency_cuts": float(report.cuts),
        "consistency_updates": float(report.updates),
        "consistency_violations": float(len(report.violations)),
    }


@dataclass(frozen=True)
class Bank:
    """The two databases, a configuration and a warehouse in one folder."""

    folder: Path
    bootstrap: str

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def conf(self) -> Path:
        return self.folder / "conf.yaml"

    def connect(self, source: str) -> sqlite3.Connection:
        return sqlite3.connect(self.folder / f"{source}.db", timeout=60, isolation_level=None)

    def create(self) -> None:
        self.folder.mkdir(parents=True)
        for source, statements in TABLES.items():
            with closing(self.connect(source)) as db:
                for statement in statements:
                    db.execute(statement)
        prefix = self.folder.name
        configuration = {
            "kafka": {"bootstrap": self.bootstrap},
            "warehouse": "warehouse",
            "sources": {name: {"kind": "sqlite", "path": f"{name}.db", "topic": f"{prefix}.{name}"} for name in TABLES},
            "views": {
                name: {"sql": sql, "topic": f"{prefix}.view.{name}", **kept(_EVERY).get(name, {})}
                for name, sql in VIEWS.items()
            },
        }
        self.conf.write_text(json.dumps(configuration, indent=1))

    def initialize(self) -> None:
        """Triggers are in place, the views loaded."""
        child = self._start("init")
        if child.wait(PATIENCE) != 0:
            child.require_alive()

    @contextmanager
    def running(self, command: str) -> Iterator[Child]:
        """A command runs inside the block."""
        child = self._start(command)
        try:
            yield child
        finally:
            child.ask_to_end()
            child.wait(60)

    def await_all(self, job: Child, books: Books) -> None:
        """Returns when a cut holds all that was committed."""
        deadline = time.monotonic() + PATIENCE
        while not self._holds(books):
            job.require_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the job was not through within {PATIENCE:.0f} s")
            time.sleep(_POLL)

    def _holds(self, books: Books) -> bool:
        cut = WarehouseReader(self.warehouse).newest()
        wanted = {LEDGER: books.payments.positions[-1], BANK: books.names.positions[-1]}
        return cut is not None and all(_reached(cut, source) >= last for source, last in wanted.items())

    def _start(self, command: str) -> Child:
        return Child(command, self.folder / f"{command}.log", command, str(self.conf))


def _reached(cut: Cut, source: str) -> int:
    return Reached.parse(cut.positions[source]).furthest
