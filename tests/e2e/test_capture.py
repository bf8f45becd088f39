"""Capture with a real broker: every change arrives once, in order, whole; whatever stops in between."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.conftest import SharedBroker, eventually
from viewkeeper.capture import update_topic
from viewkeeper.capture.side_by_side import SideBySide
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.capture.update_topic import Fenced, TooLarge
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.messages import PIECE_BYTES, UpdateMessage

pytestmark = pytest.mark.e2e


class Running:
    """A capture in a thread."""

    def __init__(self, capture: SqliteCapture):
        self.capture = capture
        self.stop = threading.Event()
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            with SideBySide(self.stop, several=False) as captures:
                captures.start(self.capture)
        except Exception as error:
            self.failure = error

    def end(self) -> None:
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


class Shop:
    """A database, its topic, and captures that end with the test."""

    def __init__(self, path: Path, broker: SharedBroker):
        self.path = str(path)
        self.broker = broker
        self.topic = broker.new_topic("shop.updates")
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, price DECIMAL(8,2), raw BLOB)")
        self.running: list[Running] = []

    def capture(self, floor: Callable[[], int] | None = None) -> SqliteCapture:
        return SqliteCapture("shop", self.path, self.topic, self.broker.client(), floor, [["shop", "crm"]])

    def install(self) -> None:
        self.capture().install({"t": ["id", "a", "price", "raw"]})

    def start(self, floor: Callable[[], int] | None = None) -> Running:
        self.running.append(Running(self.capture(floor)))
        return self.running[-1]

    def part(self, number: int, text: str = "") -> None:
        """A transaction of one row that is marked as a part of one over several sources, and so is an update."""
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute(f"INSERT INTO {log.GLOBAL_TXN} (id, sources) VALUES (?, 'shop,crm')", (f"g{number}",))
        self.db.execute("INSERT INTO t (id, a) VALUES (?, ?)", (number, text))
        self.db.execute("COMMIT")

    def parts(self) -> list[str]:
        """The transactions over several sources of which parts were told."""
        return [update.global_txn.id for update in self.updates() if update.global_txn]

    def limit(self, bytes: int) -> None:
        """How large a message the topic takes."""
        change = ConfigEntry("max.message.bytes", str(bytes), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.topic, incremental_configs=[change])
        admin = AdminClient(self.broker.client())
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(30)

    def kafka_transactions(self) -> int:
        """How many the topic has seen: each ends with a record that readers are not shown."""
        return self.broker.end(self.topic) - len(self.broker.messages(self.topic))

    def updates(self) -> list[UpdateMessage]:
        return [UpdateMessage.model_validate_json(m.value() or b"") for m in self.broker.messages(self.topic)]

    def changes(self) -> list[Any]:
        return [change for update in self.updates() for change in update.changes]

    def await_changes(self, number: int) -> list[Any]:
        eventually(lambda: len(self.changes()) >= number, 30, f"{number} changes")
        return self.changes()


@pytest.fixture
def shop(tmp_path: Path, broker: SharedBroker) -> Iterator[Shop]:
    made = Shop(tmp_path / "shop.db", broker)
    yield made
    for running in made.running:
        running.end()
    made.db.close()


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_transaction_arrives_as_one_update(shop: Shop, journal: str) -> None:
    shop.db.execute(f"PRAGMA journal_mode = {journal}")
    shop.install()
    shop.start()
    shop.db.execute("BEGIN")
    shop.db.execute("INSERT INTO t VALUES (1, 'ä', 2.5, x'00')")
    shop.db.execute("UPDATE t SET a = NULL")
    shop.db.execute("COMMIT")
    shop.await_changes(2)
    (update,) = shop.updates()
    assert update.position == int(SqliteSource("shop", shop.path).last_change())
    assert update.txn == str(update.position)
    assert [c.op for c in update.changes] == ["insert", "update"]
    assert update.changes[0].after == {"id": 1, "a": "ä", "price": "2.50", "raw": "AA=="}
    assert update.changes[1].before == update.changes[0].after


def test_changes_made_before_capture_starts_are_sent_and_no_update_spans_a_boundary(shop: Shop) -> None:
    shop.install()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    boundary = int(SqliteSource("shop", shop.path).freeze(None).since)
    shop.db.execute("INSERT INTO t (id) VALUES (2)")
    shop.start()
    shop.await_changes(2)
    assert [update.position for update in shop.updates()] == [boundary - 1, boundary + 1]


def test_a_restarted_capture_goes_on_after_its_last_message(shop: Shop) -> None:
    shop.install()
    sent = 0
    for _ in range(3):
        running = shop.start()
        for _ in range(3):
            sent += 1
            shop.db.execute("INSERT INTO t (id) VALUES (?)", (sent,))
            shop.await_changes(sent)
        running.end()
        sent += 1
        shop.db.execute("INSERT INTO t (id) VALUES (?)", (sent,))
    shop.start()
    changes = shop.await_changes(sent)
    assert [change.after["id"] for change in changes] == list(range(1, sent + 1))


def test_a_large_update_is_sent_in_pieces_that_arrive_whole(shop: Shop) -> None:
    shop.install()
    shop.start()
    shop.db.execute("BEGIN")
    shop.db.executemany("INSERT INTO t (id, a) VALUES (?, ?)", [(i, "x" * 1000) for i in range(2000)])
    shop.db.execute("COMMIT")
    changes = shop.await_changes(2000)
    pieces = shop.updates()
    assert [change.after["id"] for change in changes] == list(range(2000))
    assert [piece.part for piece in pieces] == list(range(1, len(pieces) + 1))
    assert {(piece.parts, piece.position, piece.txn) for piece in pieces} == {
        (len(pieces), pieces[0].position, pieces[0].txn)
    }
    assert max(len(m.value() or b"") for m in shop.broker.messages(shop.topic)) <= PIECE_BYTES


def test_the_updates_of_a_read_are_sent_in_few_kafka_transactions(shop: Shop) -> None:
    """A transaction of its own for each would take some 10 ms each, however many wait."""
    shop.db.execute("PRAGMA synchronous = OFF")
    shop.install()
    for number in range(1500):
        shop.part(number)
    shop.start()
    shop.await_changes(1500)
    assert shop.parts() == [f"g{number}" for number in range(1500)]
    assert shop.kafka_transactions() == 2, "a thousand updates, then the rest"


def test_kafka_transactions_are_limited_in_bytes_and_tear_no_update(shop: Shop) -> None:
    shop.install()
    for number in range(5):
        shop.part(number, "x" * 4_000_000)
    shop.db.execute("BEGIN")
    shop.db.execute(f"INSERT INTO {log.GLOBAL_TXN} VALUES ('large', 'shop,crm')")
    shop.db.executemany("INSERT INTO t (id, a) VALUES (?, ?)", [(i, "x" * 400_000) for i in range(10, 40)])
    shop.db.execute("COMMIT")
    shop.part(40)
    shop.start()
    shop.await_changes(36)
    assert shop.kafka_transactions() == 5, "two, two and one of the first, the large one, the last"
    assert list(dict.fromkeys(shop.parts())) == [*(f"g{number}" for number in range(5)), "large", "g40"]


def test_an_update_too_large_for_the_broker_is_named_and_those_before_it_are_sent(shop: Shop) -> None:
    shop.limit(600_000)
    shop.install()
    noise = random.Random(1).randbytes(500_000).hex()  # nothing that compression makes small
    shop.part(1)
    shop.part(2)
    shop.part(3, noise)
    shop.part(4)
    running = shop.start()
    eventually(lambda: running.failure, 30)
    assert isinstance(running.failure, TooLarge)
    (third,) = shop.db.execute(f"SELECT id + 1 FROM {log.LOG} WHERE op = 'part' AND b0 = 'g3'").fetchone()
    assert f"update {third}: the broker refuses a message of it: it is too large; raise the" in str(running.failure)
    assert shop.parts() == ["g1", "g2"]

    shop.limit(2_000_000)
    shop.start()
    shop.await_changes(4)
    assert shop.parts() == ["g1", "g2", "g3", "g4"]


def test_a_row_that_no_message_can_hold_is_named_with_its_update(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_topic, "LARGEST_MESSAGE", 400_000)
    shop.install()
    shop.part(1)
    shop.part(2, "x" * 500_000)
    running = shop.start()
    eventually(lambda: running.failure, 30)
    assert isinstance(running.failure, TooLarge)
    (second,) = shop.db.execute(f"SELECT id + 1 FROM {log.LOG} WHERE op = 'part' AND b0 = 'g2'").fetchone()
    what = f"update {second}: a row that was changed takes 1 MB, and a message 0 at most; make the row smaller, then"
    assert what in str(running.failure)
    assert shop.parts() == ["g1"]


def test_a_value_that_does_not_fit_its_type_is_sent_for_the_reader_to_refuse(shop: Shop) -> None:
    shop.install()
    shop.start()
    shop.db.execute("INSERT INTO t VALUES (1, x'ff', 'dear', 'text'), (2, CAST(x'ff' AS TEXT), 1, NULL)")
    first, second = shop.await_changes(2)
    misfits = {"a": {"misfit": "/w=="}, "price": {"misfit": "dear"}, "raw": {"misfit": "text"}}
    assert first.after == {"id": 1, **misfits}
    assert second.after == {"id": 2, "a": {"misfit": "/w=="}, "price": "1.00", "raw": None}


def test_a_column_that_views_begin_to_use_comes_in_its_type_from_a_capture_that_runs_already(shop: Shop) -> None:
    shop.capture().install({"t": ["id"]})
    shop.start()
    shop.db.execute("INSERT INTO t VALUES (1, 'a', 2.5, NULL)")
    shop.await_changes(1)
    shop.install()
    shop.db.execute("INSERT INTO t VALUES (2, 'a', 2.5, NULL)")
    assert [change.after.get("price") for change in shop.await_changes(2)] == [None, "2.50"]


def test_a_log_of_nothing_waits_for_the_first_relation(shop: Shop) -> None:
    SqliteCapture("shop", shop.path, shop.topic, shop.broker.client()).install({})
    shop.start()
    shop.install()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    assert [change.after["id"] for change in shop.await_changes(1)] == [1]


def test_an_older_copy_of_the_database_is_refused(shop: Shop) -> None:
    shop.install()
    position = 2**61
    later = {"source": "shop", "txn": str(position), "position": position, "changes": []}
    shop.broker.send(shop.topic, orjson.dumps(later))
    running = shop.start()
    eventually(lambda: running.failure, 30)
    assert isinstance(running.failure, SourceError)
    assert "older copy" in str(running.failure)

    # What a load does before it takes the copy as it is.
    shop.capture().pass_topic()
    shop.start()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    (change,) = shop.await_changes(1)
    assert change.after["id"] == 1
    assert shop.updates()[-1].position == position + 1


def test_a_log_made_anew_is_refused_until_the_views_are_loaded_past_its_beginning(shop: Shop) -> None:
    shop.install()
    running = shop.start()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    shop.await_changes(1)
    running.end()
    cut = shop.updates()[-1].position
    shop.capture().remove()
    shop.install()
    refused = shop.start(floor=lambda: cut)
    eventually(lambda: refused.failure, 30)
    assert isinstance(refused.failure, SourceError)
    assert "was it removed" in str(refused.failure) and "init --reload" in str(refused.failure)

    loaded = SqliteSource("shop", shop.path).freeze(None).since
    shop.start(floor=lambda: loaded)
    shop.db.execute("INSERT INTO t (id) VALUES (2)")
    assert [change.after["id"] for change in shop.await_changes(2)] == [1, 2]


def another(shop: Shop) -> str:
    """A database with a log that has got further than the shop's."""
    path = f"{shop.path}.other"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, price DECIMAL(8,2), raw BLOB)")
    SqliteCapture("shop", path, shop.topic, shop.broker.client()).install({"t": ["id"]})
    db.executemany("INSERT INTO t (id) VALUES (?)", [(i,) for i in range(100, 110)])
    db.close()
    return path


def move_over(shop: Shop, path: str) -> None:
    os.replace(path, shop.path)


def restore(shop: Shop, path: str) -> None:
    with sqlite3.connect(path) as other:
        other.backup(shop.db)
    other.close()


@pytest.mark.parametrize("take_its_place", [move_over, restore])
def test_another_database_that_takes_the_place_of_the_one_being_captured_is_refused(
    shop: Shop, take_its_place: Callable[[Shop, str], None]
) -> None:
    shop.install()
    running = shop.start()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    shop.await_changes(1)
    take_its_place(shop, another(shop))
    eventually(lambda: running.failure, 30)
    assert isinstance(running.failure, SourceError)
    assert "is another database" in str(running.failure)
    assert len(shop.changes()) == 1


def test_an_older_copy_restored_into_the_file_being_captured_is_refused(shop: Shop) -> None:
    shop.install()
    copy = sqlite3.connect(f"{shop.path}.copy")
    shop.db.backup(copy)
    running = shop.start()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    shop.await_changes(1)
    copy.backup(shop.db)
    copy.close()
    eventually(lambda: running.failure, 30)
    assert "older copy" in str(running.failure)


def test_a_database_compacted_into_a_new_file_is_captured_on(shop: Shop) -> None:
    shop.install()
    running = shop.start()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    shop.await_changes(1)
    shop.db.execute(f"VACUUM INTO '{shop.path}.new'")
    os.replace(f"{shop.path}.new", shop.path)
    with sqlite3.connect(shop.path) as db:
        db.execute("INSERT INTO t (id) VALUES (2)")
    db.close()
    assert [change.after["id"] for change in shop.await_changes(2)] == [1, 2]
    assert running.failure is None


def test_a_failure_that_nobody_foresaw_ends_every_capture_and_is_raised(shop: Shop) -> None:
    class Broken(SqliteCapture):
        def run(self, stop: threading.Event) -> None:
            raise ZeroDivisionError

    shop.install()
    stop = threading.Event()
    with pytest.raises(ZeroDivisionError), SideBySide(stop) as captures:
        captures.start(shop.capture())
        captures.start(Broken("broken", shop.path, shop.topic, shop.broker.client()))
    assert stop.is_set()


def test_of_two_captures_one_takes_over_and_the_other_says_so(shop: Shop) -> None:
    """Mostly the second one does, unless the first was about to commit: then the broker may let it try again."""
    shop.install()
    first = shop.start()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    shop.await_changes(1)
    second = shop.start()

    def write_until_fenced() -> bool:
        (last,) = shop.db.execute("SELECT max(id) FROM t").fetchone()
        shop.db.execute("INSERT INTO t (id) VALUES (?)", (last + 1,))
        return first.failure is not None or second.failure is not None

    eventually(write_until_fenced, 30)
    assert isinstance(first.failure or second.failure, Fenced)
    (last,) = shop.db.execute("SELECT max(id) FROM t").fetchone()
    changes = shop.await_changes(last)
    assert [change.after["id"] for change in changes] == list(range(1, last + 1))


def test_a_busy_database_is_waited_for(shop: Shop) -> None:
    shop.install()
    shop.db.execute("PRAGMA journal_mode = DELETE")
    shop.db.execute("BEGIN EXCLUSIVE")
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    running = shop.start()
    running.thread.join(0.5)
    assert running.thread.is_alive()
    shop.db.execute("COMMIT")
    shop.await_changes(1)


def test_a_used_column_renamed_stops_capture_with_the_remedy(shop: Shop) -> None:
    shop.install()
    running = shop.start()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    shop.await_changes(1)
    shop.db.execute("ALTER TABLE t RENAME COLUMN a TO b")
    eventually(lambda: running.failure, 30)
    assert "column t.a was renamed to b" in str(running.failure)
    assert "init --reload" in str(running.failure)


def test_a_column_added_that_nobody_uses_is_in_no_message(shop: Shop) -> None:
    shop.install()
    shop.start()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    shop.await_changes(1)
    shop.db.execute("ALTER TABLE t ADD COLUMN extra TEXT")
    shop.db.execute("INSERT INTO t (id, extra) VALUES (2, 'x')")
    first, second = shop.await_changes(2)
    assert first.after.keys() == second.after.keys()
    assert second.after["id"] == 2


def test_pruned_changes_are_not_missed_by_a_capture_that_starts_later(shop: Shop) -> None:
    shop.install()
    shop.db.execute("INSERT INTO t (id) VALUES (1)")
    boundary = SqliteSource("shop", shop.path).freeze(None)
    shop.capture().prune(boundary.since)
    shop.db.execute("INSERT INTO t (id) VALUES (2)")
    shop.start()
    (change,) = shop.await_changes(1)
    assert change.after["id"] == 2
