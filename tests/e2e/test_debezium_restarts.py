"""Capture of PostgreSQL that is killed, stopped or cut off loses nothing; a slot that was made anew is noticed."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import SharedBroker, eventually
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.debezium_shop import BOTH, TABLES, Shop, connect_of, dropped, make_shop, restarted, rows
from tests.e2e.harness import PATIENCE
from tests.e2e.postgres import Captured, Servers, database
from tests.scale import scaled
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.capture.topic_end import furthest_sent
from viewkeeper.errors import SourceError

pytestmark = [pytest.mark.e2e, pytest.mark.long]

COPIED = 40_000


@pytest.fixture
def shop(install: Install, new_database: MakeDatabase) -> Shop:
    return make_shop(install, new_database(*TABLES, name="shop"))


class Disturbed:
    """A capture, and what happens to it."""

    def __init__(self, shop: Shop):
        self.shop = shop
        self.capture = shop.world.start_capture()

    def end(self) -> None:
        """Ends it well; the slot was at no time taken for another one."""
        assert self.capture.terminate().code == 0
        assert not any("made anew" in running.err.read_text() for running in self.shop.world.processes)

    def connect_is_terminated(self) -> None:
        self._end_connect(signal.SIGTERM)

    def connect_is_killed(self) -> None:
        self._end_connect(signal.SIGKILL)

    def _end_connect(self, how: signal.Signals) -> None:
        ended = connect_of(self.capture)
        os.kill(ended, how)
        eventually(lambda: restarted(self.capture, ended), PATIENCE, "another Connect was started")

    def capture_is_interrupted(self) -> None:
        self._ended_by(signal.SIGINT)

    def capture_is_ended_by_a_service_manager(self) -> None:
        """Its signal reaches Connect as well."""
        self._ended_by(signal.SIGTERM)

    def _ended_by(self, number: signal.Signals) -> None:
        before = self.capture.err.read_text()
        ended = self.capture.signal_all(number)
        assert ended.code == 0, ended.err
        assert "Kafka Connect ended" not in ended.err.removeprefix(before)
        self.capture = self.shop.world.start("capture")

    def capture_is_killed(self) -> None:
        self.capture.kill()
        eventually(self.capture.leaves_nothing, PATIENCE, "Connect ends with its supervisor")
        self.capture = self.shop.world.start("capture")

    def server_stops_at_once(self) -> None:
        self.shop.db.server.restart("immediate")

    def connection_is_cut(self) -> None:
        self.shop.db.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{self.shop.db.slot}'"
        )


class Copies(Disturbed):
    """Transactions of one COPY each, in which many rows share a position of the log."""

    made: list[list[int]]

    def copy(self) -> None:
        first = len(self.made) * COPIED
        ids = range(first, first + COPIED)
        with self.shop.db.connect() as db, db.cursor().copy("COPY orders FROM STDIN") as copy:
            for n in ids:
                copy.write_row((n, n % 10, "x"))
        self.made.append(list(ids))

    def disturb(self, disturbance: Callable[[], None]) -> None:
        """Does it in the middle of the delivery of a COPY; afterwards everything arrives."""
        for _ in range(5):
            before = self.shop.end()
            self.copy()
            eventually(lambda before=before: self.shop.end() > before + 500, PATIENCE, "the COPY is on its way")
            in_the_middle = not self.shop.ends_since(before)
            disturbance()
            eventually(lambda before=before: self.shop.ends_since(before), PATIENCE, "the rest comes")
            assert self.shop.updates() == self.made
            if in_the_middle and self.shop.end() > before + COPIED + 2:
                return
        raise AssertionError("each COPY was through before the disturbance")


def test_a_copy_that_is_cut_off_in_the_middle_arrives_whole_and_once(install: Install, postgres: Servers) -> None:
    """Rows that share a position of the log would be left out by a connector that resumes among them."""
    with database(postgres.own(), TABLES, "copied") as made:
        shop = make_shop(install, made)
        copies = Copies(shop)
        copies.made = []
        for disturbance in (
            copies.connect_is_terminated,
            copies.connection_is_cut,
            copies.capture_is_interrupted,
            copies.server_stops_at_once,
            copies.connect_is_killed,
        ):
            copies.disturb(disturbance)
        last = max(shop.done())
        eventually(lambda: shop.confirmed >= last, PATIENCE, "the server may let its log go")
        copies.end()


def test_restarts_under_load_lose_nothing_and_the_slot_is_known_again(shop: Shop) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    stop = threading.Event()
    numbers = itertools.count(1)
    committed: list[int] = []

    def write() -> None:
        with shop.db.connect(autocommit=False) as db:
            while not stop.wait(0.02):
                made = [next(numbers) for _ in range(rng.randrange(1, 40))]
                for n in made:
                    db.execute("INSERT INTO orders (id) VALUES (%s)", (n,))
                if rng.random() < 0.1:
                    db.rollback()
                else:
                    db.commit()
                    committed.extend(made)

    disturbed = Disturbed(shop)
    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    for _ in range(scaled(1, 2)):
        for disturbance in (
            disturbed.connect_is_killed,
            disturbed.capture_is_ended_by_a_service_manager,
            disturbed.connection_is_cut,
            disturbed.capture_is_killed,
        ):
            goal = shop.end() + rng.randrange(1, 2000)
            eventually(lambda goal=goal: shop.end() > goal, PATIENCE, "messages flow")
            disturbance()
    stop.set()
    for writer in writers:
        writer.join(PATIENCE)
    eventually(lambda: len(rows(shop.done())) == len(committed), PATIENCE, f"{len(committed)} rows")
    assert sorted(rows(shop.done())) == sorted(committed)
    disturbed.end()


def test_connect_dies_with_a_killed_capture(shop: Shop) -> None:
    capture = shop.world.start_capture()
    eventually(lambda: restarted(capture, 0), PATIENCE, "Connect was started")
    connect = connect_of(capture)
    capture.kill()
    eventually(lambda: not Path(f"/proc/{connect}/exe").exists(), 30, "Connect is gone")
    eventually(capture.leaves_nothing, 30, "nothing is left")
    # What its own end left behind holds up nobody.
    with shop.world.capturing():
        shop.db.execute("INSERT INTO orders VALUES (1)")
        eventually(lambda: rows(shop.done()) == [1], PATIENCE, "the transaction")


def test_a_slot_that_is_gone_ends_the_capture_of_its_source_alone_with_the_remedy(shop: Shop) -> None:
    capture = shop.world.start_capture()
    shop.db.execute("INSERT INTO orders VALUES (1)")
    eventually(lambda: rows(shop.done()) == [1], PATIENCE, "the transaction")
    with shop.db.connect() as db:
        db.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s",
            [shop.db.slot],
        )
        eventually(lambda: dropped(db, shop.db.slot), PATIENCE, "the slot is dropped")
    eventually(lambda: "no longer captured here" in capture.err.read_text(), PATIENCE, "that is told")
    shop.world.write("crm", "INSERT INTO customers VALUES (7, 'Ada')")
    eventually(lambda: shop.world.messages("crm"), PATIENCE, "the SQLite source goes on")
    ended = capture.terminate()
    assert ended.code == 3
    assert ended.errors[-1] == (
        f"viewkeeper: source shop: slot {shop.db.slot} is gone, so changes may be missing; "
        f"run `viewkeeper init {shop.world.conf} --reload overview`"
    )


def test_a_slot_is_known_by_what_was_sent_and_by_where_it_was_seen_last(
    new_database: MakeDatabase, tmp_path: Path
) -> None:
    db = new_database(*TABLES)
    capture = Captured("shop", db, "topic", BOTH).capture(tmp_path)
    consume = f"SELECT pg_replication_slot_advance('{db.slot}', pg_current_wal_lsn())"
    anew = f"SELECT pg_drop_replication_slot('{db.slot}')", capture._names.create_slot()

    def require(sent: int) -> None:
        capture.require_same_slot(lambda: sent)

    def refused(sent: int) -> None:
        with pytest.raises(SourceError, match="was made anew"):
            require(sent)

    capture.install(BOTH)
    require(0)  # nobody has read it yet
    db.execute("INSERT INTO orders VALUES (1)")
    db.execute(consume)
    require(1 << 62)  # it was sent
    require(0)  # retention has emptied the topic
    db.execute("INSERT INTO orders VALUES (2)")
    db.execute(anew[0])
    db.execute(anew[1])
    refused(1)
    refused(1 << 62)  # another program sends on
    with pytest.raises(SourceError, match="was made anew"):
        capture.install(BOTH)
    capture.install(BOTH, reload=True)
    require(0)
    db.execute("INSERT INTO orders VALUES (3)")
    db.execute(consume)
    capture.remember_slot()  # nobody reads it
    refused(1)


def test_how_far_a_topic_has_come_is_told_by_its_last_end_and_what_follows(broker: SharedBroker) -> None:
    def frame(status: str, lsn: int) -> str:
        return f'{{"status":"{status}","id":"7:{lsn}"}}'

    def row(lsn: int) -> str:
        return f'{{"op":"c","source":{{"lsn":{lsn}}}}}'

    topic = broker.new_topic()
    far = [
        ([], 0),
        ([frame("BEGIN", 5)], 5),
        ([*[row(6)] * 50, row(9)], 9),
        ([frame("BEGIN", 5), *[row(6)] * 50], 9),
        ([frame("END", 20)], 20),
        ([frame("BEGIN", 8), *[row(8)] * 200], 20),
        ([row(30), '{"ts_ms":1}', "[]", "null", ""], 30),
    ]
    for values, furthest in far:
        broker.send(topic, *values)
        assert furthest_sent(broker.client(), topic) == furthest


def test_a_slot_that_was_made_anew_while_capture_was_away_is_noticed(shop: Shop, tmp_path: Path) -> None:
    with shop.world.capturing():
        shop.db.execute("INSERT INTO orders VALUES (1)")
        eventually(lambda: rows(shop.done()) == [1], PATIENCE, "the transaction")
    shop.db.execute("INSERT INTO orders VALUES (2)")
    with shop.db.connect() as db:
        eventually(lambda: dropped(db, shop.db.slot), PATIENCE, "the slot is dropped")
        db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [shop.db.slot])
    shop.db.execute("INSERT INTO orders VALUES (3)")
    for _ in range(2):
        ended = shop.world.run("capture", "shop")
        assert ended.code == 3
        assert ended.errors[-1] == (
            f"viewkeeper: source shop: slot {shop.db.slot} was made anew, so changes may be missing; "
            f"run `viewkeeper init {shop.world.conf} --reload overview`"
        )
    assert rows(shop.done()) == [1]
    memory = shop.world.folder / "warehouse" / "captures" / "shop.json"
    capture = PostgresCapture("shop", shop.db.config(topic=shop.topic), memory)
    capture.install(BOTH, reload=True)
    with shop.world.capturing():
        shop.db.execute("INSERT INTO orders VALUES (4)")
        eventually(lambda: rows(shop.done()) == [1, 4], PATIENCE, "it goes on")
