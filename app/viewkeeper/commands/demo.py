"""``viewkeeper demo``: the whole path on this machine, in one terminal, and the proof that it is exact."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from viewkeeper import signals
from viewkeeper.config import Config, load_config
from viewkeeper.errors import UsageError, WorldError
from viewkeeper.job.assembly import assemble
from viewkeeper.job.compensating import beyond
from viewkeeper.job.freezing import frozen
from viewkeeper.job.loading import compare
from viewkeeper.job.status import StatusFile
from viewkeeper.local.broker import Broker
from viewkeeper.local.demo.children import Child, Household
from viewkeeper.local.demo.difference import difference
from viewkeeper.local.demo.folder import DemoFolder
from viewkeeper.local.demo.follower import FollowedView, Follower, Sealed, read_bag
from viewkeeper.local.demo.latency import Latencies
from viewkeeper.local.demo.postgres_world import PostgresWorld
from viewkeeper.local.demo.sample import SHOWN_VIEW
from viewkeeper.local.demo.screen import ROWS, Asked, Moment, Opinion, Screen
from viewkeeper.local.demo.sqlite_world import SqliteWorld
from viewkeeper.local.demo.window import Window
from viewkeeper.local.demo.world import World
from viewkeeper.local.demo.writer import THREADS, Writer
from viewkeeper.warehouse.reader import WarehouseReader

PORT = 19092
"""Where the broker listens if it can, because conf/demo.yaml says so; else wherever there is room."""

BUSY_CUSTOMER = 1
FRAME = 0.2
START_SECONDS, CATCH_UP_SECONDS, STOP_SECONDS = 120.0, 120.0, 20.0
HURRY = 2.0
"""Seconds that processes get to end by themselves when the demo is broken off."""

EXAMPLES = 5


def run(args: argparse.Namespace) -> int:
    """0 if every view is proven equal to recomputation, 1 if not; however it ends, every process ends with it."""
    signals.interrupt()
    folder = DemoFolder(Path(args.dir))
    demo = Demo(PostgresWorld(folder) if args.postgres else SqliteWorld(folder), args.seconds, Screen())
    try:
        return demo.run()
    finally:
        signals.pass_over()  # Ctrl-C must not keep us from ending what we started
        demo.end()


class Demo:
    """One demo: the parts it is made of, and its acts in order."""

    def __init__(self, world: World, seconds: int, screen: Screen):
        self.world = world
        self.folder = world.folder
        self.seconds = seconds
        self.screen = screen
        self.writer = Writer(world)
        self.latencies = Latencies(self.writer)
        self.household = Household()
        self.children: list[Child] = []
        self.broker: Broker | None = None
        self.follower: Follower | None = None
        self.window = Window(BUSY_CUSTOMER, [])

    def run(self) -> int:
        """The acts, one after the other."""
        self.introduce()
        self.folder.make()
        self.start_parts()
        self.open_views()
        with self.screen.panel():
            self.write()
            self.catch_up()
        proven = self.prove()
        self.stop_parts()
        self.take_leave()
        return 0 if proven else 1

    def end(self) -> None:
        """Ends every thread and every process that is left; doing it after ``stop_parts`` only makes sure."""
        if self.follower is not None:
            self.follower.stop()
        self.world.close()
        self.household.end(HURRY)
        if self.broker is not None:
            self.broker.stop()

    @cached_property
    def config(self) -> Config:
        return load_config(self.folder.config)

    @cached_property
    def warehouse(self) -> WarehouseReader:
        return WarehouseReader(self.config.warehouse, keep=self.config.keep)

    # ---- act 1: everything comes up

    def introduce(self) -> None:
        self.screen.say(
            f"[bold]Viewkeeper demo[/]: three {self.world.title} that know nothing of each other, and two views\n"
            f"that join them. {len(THREADS)} threads change the databases at the same time. For every change the job\n"
            "asks the other databases only for the rows that join with it, and repairs the answers for what\n"
            "changed meanwhile. In the end both views are compared with recomputation, row by row.\n"
            "Ctrl-C ends everything.\n"
        )

    def start_parts(self) -> None:
        """Databases, broker, capture and job; the job goes on starting after this."""
        with self.screen.waiting(f"creating three {self.world.title}"):
            rows = self.world.create()
        self.screen.step("databases", ", ".join(f"{name} {count:,} rows" for name, count in rows.items()))
        with self.screen.waiting("starting a Kafka broker"):
            self.broker = self._start_broker()
        self.folder.write_config(self.world.configuration(self.broker.bootstrap))
        self.screen.step("broker", f"Kafka at {self.broker.bootstrap}")
        for name, command in (("job", "run"), ("capture", "capture")):
            log = self.folder.logs / f"{name}.log"
            self.children.append(Child(name, log, command, str(self.folder.config)))

    def _start_broker(self) -> Broker:
        try:
            return Broker(self.folder.broker, PORT).start()
        except UsageError:
            return Broker(self.folder.broker).start()

    def open_views(self) -> None:
        """The views are loaded, somebody follows their topics, and a first change has gone all the way."""
        with self.screen.waiting("installing capture"):
            self._until(self._captured, START_SECONDS, "the databases were not captured")
        self.screen.step("capture", f"{self.world.captured_by} in {', '.join(self.config.sources)}")
        with self.screen.waiting("loading the views"):
            self._until(lambda: self.warehouse.newest() is not None, START_SECONDS, "the views were not loaded")
            topics = {name: section.topic for name, section in self.config.views.items()}
            views = [FollowedView.loaded(self.warehouse, name, topic) for name, topic in topics.items()]
        self.screen.step("views", ", ".join(f"{v.name} {v.rows:,} rows" for v in views) + " loaded: cut 0")
        shown = next(view for view in views if view.name == SHOWN_VIEW)
        self.window = Window(BUSY_CUSTOMER, (dict(zip(shown.columns, row, strict=True)) for row in shown.bag))
        self.follower = Follower(self.config.kafka.client(), views, self._heard)
        self.follower.start()
        with self.screen.waiting("starting Spark"):
            self.writer.write_one("shop")
            self._until(self._caught_up, START_SECONDS, "the first change did not arrive")
        self.latencies.forget()
        self.screen.step("job", f"ready: a first change in shop is in the views; logs in {self.folder.logs}/")

    def _captured(self) -> bool:
        """Does every database log its changes?"""
        return all(map(self.world.is_captured, self.config.sources))

    def _heard(self, sealed: Sealed) -> None:
        self.latencies.heard(sealed)
        if sealed.view == SHOWN_VIEW:
            self.window.apply(sealed.changes)

    # ---- act 2: changes, all at once

    def write(self) -> None:
        self.writer.start()
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < self.seconds:
            self.screen.show(self._moment(f"writing, {passed:.0f} of {self.seconds} s"))
            self._rest()

    def catch_up(self) -> None:
        """The writer stops, and the job handles what is left."""
        self.writer.stop()
        self._until(
            self._caught_up, CATCH_UP_SECONDS, "the job did not catch up", "the writer has stopped, catching up"
        )
        self.screen.show(self._moment("the writer has stopped, the job has caught up"))

    def _caught_up(self) -> bool:
        """Is every change in a cut, and every cut with the follower?"""
        cut = self.warehouse.newest()
        assert cut is not None and self.follower is not None
        if not self.world.holds_all(cut, self.writer.transactions):
            return False
        return all(view.cut == cut.cut for view in self.follower.views.values())

    def _moment(self, phase: str) -> Moment:
        assert self.follower is not None
        status = StatusFile.of(self.config.warehouse).read() or {}
        views = self.follower.views.values()
        return Moment(
            phase=phase,
            written={name: self.writer.transactions[name] for name in self.config.sources},
            rolled_back=self.writer.rolled_back,
            asked={name: Asked(**tally) for name, tally in status.get("asked", {}).items()},
            recent=self.writer.latest(),
            view=SHOWN_VIEW,
            rows=self.window.newest(ROWS),
            row_counts={view.name: view.rows for view in views},
            cut=status.get("cut", 0),
            updates=status.get("last_update", 0),
            latency=self.latencies.lately(),
            waiting=status.get("waiting"),
        )

    # ---- act 3: the proof

    def prove(self) -> bool:
        """Three opinions on every view at the newest cut: are all of them that it is right?"""
        project = assemble(self.config)
        cut = self.warehouse.newest()
        assert cut is not None and self.follower is not None
        opinions = []
        with self.screen.waiting("recomputing"), frozen(project.sources, cut.positions, hold=True) as at:
            beyond_cut = beyond(project, cut, at)
            for name, view in project.views.items():
                result = compare(view, at.sources, at.snapshots, self.warehouse, cut, beyond_cut, EXAMPLES)
                examples = [f"{count:+} {row}" for row, count in result.examples]
                by = "recomputation by viewkeeper verify"
                opinions.append(Opinion(name, result.rows, by, result.differing, examples))
                written = self.config.views[name].sql
                columns, held = read_bag(self.warehouse, name, cut.cut)
                others = {
                    self.world.second_opinion: self.world.recompute(written),
                    "what a reader of its topic has put together": self.follower.views[name].bag,
                }
                for by, bag in others.items():
                    wrong = difference(held, bag)
                    examples = [
                        f"{n:+} {dict(zip(columns, row, strict=True))}" for row, n in list(wrong.items())[:EXAMPLES]
                    ]
                    opinions.append(Opinion(name, held.total(), by, len(wrong), examples))
        return self._report(opinions, cut.cut, cut.last_update)

    def _report(self, opinions: list[Opinion], cut: int, update: int) -> bool:
        screen, moment = self.screen, self._moment("")
        screen.say(f"\n[bold]The proof[/], with every source frozen at cut {cut:,}, update {update:,}:")
        screen.opinions(opinions)
        screen.say(
            f"\n{sum(moment.written.values()):,} transactions came as {update:,} updates and became {cut:,} cuts; "
            f"[bold]{moment.compensated:,}[/] answers held\nconcurrent changes and were compensated."
        )
        if measured := self.latencies.overall():
            median, most = measured
            screen.say(f"From a source's commit to the cut: {median:.2f} s (median), 95 of 100 within {most:.2f} s.")
        proven = not any(opinion.differing for opinion in opinions)
        verdict = "[bold green]PROVEN[/]: both views are exactly what recomputation gives."
        screen.say(verdict if proven else "[bold red]FAILED[/]: a view differs from its recomputation.")
        return proven

    # ---- act 4: everything goes

    def stop_parts(self) -> None:
        """Ends job, capture, broker and databases in that order, each after what it has in hand."""
        assert self.follower is not None and self.broker is not None
        self.follower.stop()
        with self.screen.waiting("stopping"):
            for child in self.children:
                child.ask_to_end()
            for child in self.children:
                child.wait(STOP_SECONDS)
            self.broker.stop()
            self.world.close()

    def take_leave(self) -> None:
        """Where everything is, and what works now that the broker is gone."""
        cut = self.warehouse.newest()
        some = 0 if cut is None else cut.last_update // 2
        command, conf = _command(), self.folder.config
        assert self.broker is not None and self.broker.port is not None
        asking = {
            "what a change makes it ask": f"explain {conf} {SHOWN_VIEW}",
            "the proof again": f"verify {conf}",
        }
        tries = {
            "the view after any update": f"read {conf} {SHOWN_VIEW} --update {some}",
            **(asking if self.world.outlasts else {}),
            "the broker and its topics": f"broker --dir {self.folder.broker} --port {self.broker.port}",
            "… and beside it, the topic": f"tail {conf} {SHOWN_VIEW}",
        }
        self.screen.say(f"\nEverything is in {self.folder.root}/ (logs in {self.folder.logs}/). Try:")
        for what, line in tries.items():
            self.screen.say(f"  [dim]{what:<27}[/] {command} {line}")

    # ---- waiting

    def _until(self, condition: Callable[[], bool], seconds: float, problem: str, phase: str | None = None) -> None:
        """Waits for the condition while everything lives; shows the phase meanwhile, if it is one to be shown."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise WorldError.at("demo", f"{problem} within {seconds:.0f} s", f"see {self.folder.logs}")
            if phase is not None:
                self.screen.show(self._moment(phase))
            self._rest()

    def _rest(self) -> None:
        """A short pause, in which nothing may have ended or failed."""
        time.sleep(FRAME)
        for child in self.children:
            child.require_alive()
        for thread in (self.writer, self.follower):
            if thread is not None and thread.failure is not None:
                raise thread.failure


def _command() -> str:
    """How this program is called from here."""
    if shutil.which("viewkeeper"):
        return "viewkeeper"
    return os.path.relpath(Path(sys.executable).with_name("viewkeeper"))
