"""View topics on a real broker: a reader that honours seals sees every update once, in order."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.conftest import SharedBroker, unique
from viewkeeper.errors import KafkaError, RowTooLarge, UsageError
from viewkeeper.job.patience import RETRYABLE
from viewkeeper.messages import PIECE_BYTES, SealMessage, ViewUpdateMessage
from viewkeeper.warehouse import topics as view_topics
from viewkeeper.warehouse.cuts import UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.fault import CRASH_AFTER
from viewkeeper.warehouse.topics import ViewTopics, ensure_topics
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.e2e

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def topic(broker: SharedBroker) -> str:
    return broker.new_topic("view")


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return loaded(tmp_path)


def loaded(root: Path) -> Warehouse:
    """A warehouse whose cut 0 holds the view v, empty."""
    warehouse = Warehouse(root)
    warehouse.open()
    empty = SCHEMA.append(pa.field("_count", pa.int64())).empty_table()
    warehouse.load("v", SCHEMA, "SELECT 1", [empty], 0)
    warehouse.commit(WarehouseTransaction(0, {}, {}, "complete"))
    return warehouse


def commit(warehouse: Warehouse, first: int, last: int, rows: int = 1, name: str = "x") -> Any:
    """A cut of updates ``first`` to ``last``, each adding that many rows; even updates change nothing."""
    odd = [k for k in range(first, last + 1) if k % 2 for _ in range(rows)]
    table = pa.table({"id": odd, "name": [name] * len(odd), "_count": [1] * len(odd), "_update": odd})
    updates = update_table(UpdateRow(k, "shop", f"t{k}", "shop.updates", k) for k in range(first, last + 1))
    return warehouse.commit(WarehouseTransaction(last, {"shop": str(last)}, {}, "complete", updates, {"v": [table]}))


def received(broker: SharedBroker, topic: str) -> list[dict[str, Any]]:
    return [json.loads(message.value()) for message in broker.messages(topic)]


def seen(broker: SharedBroker, topic: str) -> list[tuple[str, int]]:
    return [("seal", m["sealed"]) if "sealed" in m else ("update", m["update"]) for m in received(broker, topic)]


def test_a_cut_is_its_updates_in_order_and_then_its_seal(
    broker: SharedBroker, topic: str, warehouse: Warehouse
) -> None:
    topics = ViewTopics(broker.client(), warehouse.id(), {"v": topic})
    assert topics.catch_up(warehouse) == 1
    cut = commit(warehouse, 1, 5)
    topics.publish_stored(warehouse, cut)
    assert seen(broker, topic) == [
        ("seal", 0),
        *[("update", k) for k in (1, 3, 5)],
        ("seal", 1),
    ]
    *_, update, last = received(broker, topic)
    assert ViewUpdateMessage(**update) == ViewUpdateMessage(
        view="v", update=5, source="shop", txn="t5", changes=[{"row": {"id": 5, "name": "x"}, "count": 1}]
    )
    assert SealMessage(**last).positions == {"shop": "5"}


def test_a_restart_sends_just_what_the_topic_lacks(broker: SharedBroker, topic: str, warehouse: Warehouse) -> None:
    first = ViewTopics(broker.client(), warehouse.id(), {"v": topic})
    first.catch_up(warehouse)
    commit(warehouse, 1, 3)
    commit(warehouse, 4, 6)
    second = ViewTopics(broker.client(), warehouse.id(), {"v": topic})
    assert second.last_seal("v") == 0
    assert second.catch_up(warehouse) == 2
    assert second.catch_up(warehouse) == 0
    expected = [("seal", 0), ("update", 1), ("update", 3), ("seal", 1), ("update", 5), ("seal", 2)]
    assert seen(broker, topic) == expected
    with pytest.raises(KafkaError, match="another job"):
        first.publish_stored(warehouse, warehouse.cut(2))
    assert seen(broker, topic) == expected


def test_a_topic_emptied_by_retention_is_not_filled_again(
    broker: SharedBroker, topic: str, warehouse: Warehouse
) -> None:
    topics = ViewTopics(broker.client(), warehouse.id(), {"v": topic})
    topics.catch_up(warehouse)
    for k in (1, 3):
        topics.publish_stored(warehouse, commit(warehouse, k, k + 1))
        warehouse.note_sealed(warehouse.newest().cut)  # type: ignore[union-attr]
    emptied = f"{topic}.emptied"
    ensure_topics(broker.client(), {emptied: 1})
    assert ViewTopics(broker.client(), warehouse.id(), {"v": emptied}).catch_up(warehouse) == 1
    assert seen(broker, emptied) == [("update", 3), ("seal", 2)]


def test_a_topic_that_outlived_its_warehouse_gets_every_cut_of_the_next(
    broker: SharedBroker, topic: str, warehouse: Warehouse, tmp_path: Path
) -> None:
    for k in (1, 2, 3):
        commit(warehouse, k, k)
    ViewTopics(broker.client(), warehouse.id(), {"v": topic}).catch_up(warehouse)
    old = [("seal", 0), ("update", 1), ("seal", 1), ("seal", 2), ("update", 3), ("seal", 3)]
    assert seen(broker, topic) == old

    new = loaded(tmp_path / "new")
    topics = ViewTopics(broker.client(), new.id(), {"v": topic})
    assert topics.catch_up(new) == 1
    commit(new, 1, 1)
    restarted = ViewTopics(broker.client(), new.id(), {"v": topic})
    assert restarted.last_seal("v") == 0
    assert restarted.catch_up(new) == 1
    assert seen(broker, topic) == [*old, ("seal", 0), ("update", 1), ("seal", 1)]


def test_two_warehouses_that_write_into_one_topic_are_told_so(broker: SharedBroker, topic: str, tmp_path: Path) -> None:
    """Each sees it at its next cut, and at its next start."""
    one, other = loaded(tmp_path / "one"), loaded(tmp_path / "other")
    mine = ViewTopics(broker.client(), one.id(), {"v": topic})
    mine.catch_up(one)
    for number in (1, 2):
        mine.publish_stored(one, commit(one, number, number))
        mine.require_alone()
    theirs = ViewTopics(broker.client(), other.id(), {"v": topic})
    commit(other, 1, 2)
    theirs.catch_up(other)
    mine.publish_stored(one, commit(one, 3, 3))
    with pytest.raises(UsageError, match=rf"topic {topic}: another job writes into it too"):
        mine.require_alone()
    theirs.publish_stored(other, commit(other, 3, 5))
    one.note_sealed(3)
    commit(one, 4, 4)
    with pytest.raises(UsageError, match=rf"topic {topic}: another job writes into it too.*; give each view"):
        ViewTopics(broker.client(), one.id(), {"v": topic}).catch_up(one)


def test_a_failed_publish_leaves_nothing_to_be_seen(broker: SharedBroker, topic: str, warehouse: Warehouse) -> None:
    topics = ViewTopics(broker.client(), warehouse.id(), {"v": topic})
    cut = commit(warehouse, 1, 1)

    def broken() -> Iterator[pa.Table]:
        yield from warehouse.changes("v", 1, 1)
        raise RuntimeError("disk gone")

    with pytest.raises(RuntimeError, match="disk gone"):
        topics.publish(cut, warehouse.updates(1, 1), {"v": broken()})
    assert seen(broker, topic) == []
    topics.catch_up(warehouse)
    assert seen(broker, topic) == [("seal", 0), ("update", 1), ("seal", 1)]


def publish_and_crash(bootstrap: str, topic: str, root: Path, step: str) -> None:
    os.environ[CRASH_AFTER] = step
    warehouse = Warehouse(root)
    warehouse.open()
    ViewTopics({"bootstrap.servers": bootstrap}, warehouse.id(), {"v": topic}).catch_up(warehouse)


@pytest.mark.parametrize("step", ["topics-sent", "topics-sent:2", "topics", "topics:2"])
def test_a_kill_while_publishing_sends_nothing_twice(
    broker: SharedBroker, topic: str, warehouse: Warehouse, step: str
) -> None:
    commit(warehouse, 1, 3)
    processes = multiprocessing.get_context("spawn")
    arguments = (broker.bootstrap, topic, warehouse.layout.root, step)
    process = processes.Process(target=publish_and_crash, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    ViewTopics(broker.client(), warehouse.id(), {"v": topic}).catch_up(warehouse)
    assert seen(broker, topic) == [("seal", 0), ("update", 1), ("update", 3), ("seal", 1)]


def test_a_large_change_comes_in_pieces(broker: SharedBroker, topic: str, warehouse: Warehouse) -> None:
    commit(warehouse, 1, 2, rows=30_000, name="n" * 50)
    ViewTopics(broker.client(), warehouse.id(), {"v": topic}).catch_up(warehouse)
    pieces = [ViewUpdateMessage(**m) for m in received(broker, topic) if "update" in m]
    assert [p.part for p in pieces] == list(range(1, len(pieces) + 1)) and len(pieces) > 2
    assert {p.parts for p in pieces} == {len(pieces)}
    assert sum(len(p.changes) for p in pieces) == 30_000
    assert all(len(p.model_dump_json()) < 1.1 * PIECE_BYTES for p in pieces)


def test_a_topic_with_several_partitions_is_refused(broker: SharedBroker) -> None:
    name = unique("view")
    ensure_topics(broker.client(), {name: 2})
    ensure_topics(broker.client(), {name: 2})
    with pytest.raises(KafkaError, match="2 partitions"):
        ensure_topics(broker.client(), {name: 1})


def test_topics_can_be_used_as_soon_as_they_are_made(broker: SharedBroker) -> None:
    names = [unique("new") for _ in range(20)]
    ensure_topics(broker.client(), dict.fromkeys(names, 1))
    reader = Consumer(broker.client(group_id=unique("reader")))
    assert [reader.get_watermark_offsets(TopicPartition(name, 0), timeout=10) for name in names] == [(0, 0)] * 20
    reader.close()


def test_a_broker_that_is_not_there_is_a_clear_error() -> None:
    with pytest.raises(KafkaError, match=r"start it, or correct kafka\.bootstrap"):
        ensure_topics({"bootstrap.servers": "127.0.0.1:1"}, {"t": 1}, patience=1.0)


def test_a_row_that_no_message_can_hold_is_named_at_once_and_each_time(
    broker: SharedBroker, topic: str, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trying again would not help, so it is none of the errors that are tried again."""
    monkeypatch.setattr(view_topics, "LARGEST_MESSAGE", 2_000_000)
    topics = ViewTopics(broker.client(), warehouse.id(), {"v": topic})
    topics.catch_up(warehouse)
    cut = commit(warehouse, 1, 1, name="x" * 2_500_000)
    for send in (lambda: topics.publish_stored(warehouse, cut), lambda: topics.catch_up(warehouse)):
        with pytest.raises(RowTooLarge) as refused:
            send()
        assert not isinstance(refused.value, RETRYABLE)
        assert f"topic {topic}: a row of view v takes 3 MB, and a message 2 at most; take its" in str(refused.value)
    assert seen(broker, topic) == [("seal", 0)]
    monkeypatch.setattr(view_topics, "LARGEST_MESSAGE", 3_000_000)
    assert topics.catch_up(warehouse) == 1, "letters compress: the broker takes it"
