"""View topics: what a cut did to each view, then its seal, all views of a cut in one Kafka transaction.

A cut is sent after it is committed. A restart first sends the cuts that a topic lacks, so a
``read_committed`` reader sees every update once and in order, whatever crashed. The transactional id belongs
to the warehouse and the group: a new job fences off what is left of an old one, and no other group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import orjson
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as Reason
from confluent_kafka.admin import AdminClient, NewTopic

from viewkeeper.errors import KafkaError, RowTooLarge, UsageError
from viewkeeper.messages import ENVELOPE, LARGEST_MESSAGE
from viewkeeper.warehouse import fault
from viewkeeper.warehouse.brokers import metadata
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.view_messages import seal, view_messages
from viewkeeper.warehouse.warehouse import Warehouse

PATIENCE = 30.0
_TAIL = 8  # offsets to look at first for a topic's last seal: it is the last message of its transaction

log = logging.getLogger("viewkeeper")
_SILENT = logging.getLogger("viewkeeper.warehouse.topics.client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def ensure_topics(client: Mapping[str, Any], topics: Mapping[str, int], patience: float = PATIENCE) -> None:
    """Creates the topics that are missing, with that many partitions; all else is left to the broker.

    They can be used at once: a topic that was just created has no leader for a moment, and refuses everything.
    """
    bootstrap = client["bootstrap.servers"]
    admin = AdminClient(dict(client), logger=_SILENT)
    present = metadata(client, patience).topics
    _refuse_other_partitions(bootstrap, topics, {t: len(m.partitions) for t, m in present.items()})
    missing = [NewTopic(topic, num_partitions=n) for topic, n in topics.items() if topic not in present]
    if not missing:
        return
    for topic, created in admin.create_topics(missing, request_timeout=patience).items():
        with _world(f"{bootstrap}: topic {topic}"), _existing_is_fine():
            created.result()
    with _world(bootstrap):
        _await_leaders(client, [topic for topic in topics if topic not in present], patience)


def _await_leaders(client: Mapping[str, Any], topics: Iterable[str], patience: float) -> None:
    """Asks each topic for its end until it tells; by a new client each time, because a client remembers a no."""
    deadline = time.monotonic() + patience
    for topic in topics:
        while not _has_leader(client, topic, last=time.monotonic() > deadline):
            time.sleep(0.05)


def _has_leader(client: Mapping[str, Any], topic: str, last: bool) -> bool:
    settings = {**client, "group.id": "viewkeeper", "enable.auto.commit": False}
    consumer = Consumer(settings, logger=_SILENT)
    try:
        consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=2.0)
    except KafkaException:
        if last:
            raise
        return False
    finally:
        consumer.close()
    return True


def _refuse_other_partitions(bootstrap: str, wanted: Mapping[str, int], present: Mapping[str, int]) -> None:
    for topic, partitions in wanted.items():
        if topic in present and present[topic] != partitions:
            raise KafkaError.at(
                f"{bootstrap}: topic {topic}",
                f"it has {present[topic]} partitions, but order needs {partitions}",
                "name another topic, or create it anew",
            )


@contextmanager
def _existing_is_fine() -> Iterator[None]:
    """Somebody else created it meanwhile: as good."""
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() != Reason.TOPIC_ALREADY_EXISTS:
            raise


class ViewTopics:
    """The topics of the views; connects on first use, and anew after an error."""

    def __init__(
        self,
        client: Mapping[str, Any],
        warehouse_id: str,
        topics: Mapping[str, str],
        patience: float = PATIENCE,
        group: str = "all",
    ):
        self._client = dict(client)
        self._bootstrap = client["bootstrap.servers"]
        self._id = f"viewkeeper-{warehouse_id}" + ("" if group == "all" else f"-{group}")
        self._topics = dict(topics)
        self._patience = patience
        self._producer: Producer | None = None
        self._ends: dict[str, int] = {}  # by topic, the offset where the next message of ours belongs
        self._mixed: str | None = None  # a topic that others write into

    def require_alone(self) -> None:
        """Raises UsageError if somebody else was seen to write into a topic since the last cut but one."""
        if self._mixed is not None:
            raise self._shared(self._mixed)

    def _shared(self, topic: str) -> UsageError:
        what = "another job writes into it too (of a copy of this configuration?), so it holds two histories"
        return UsageError.at(f"{self._bootstrap}: topic {topic}", what, "give each view a `topic:` of its own")

    def catch_up(self, warehouse: Warehouse) -> int:
        """Sends every committed cut that a topic lacks; returns how many. Call it before the first publish."""
        newest = warehouse.newest()
        if newest is None:
            return 0
        self._connect()  # also ends the transaction that an earlier job may have left open
        sealed = {view: max(self._own_seal(view, newest, warehouse), newest.sealed) for view in self._topics}
        missing = warehouse.cuts(min(sealed.values(), default=newest.cut) + 1, newest.cut)
        for cut in missing:
            views = [view for view in self._topics if view in cut.versions and sealed[view] < cut.cut]
            self.publish_stored(warehouse, cut, views)
        warehouse.note_sealed(newest.cut)
        return len(missing)

    def _own_seal(self, view: str, newest: Cut, warehouse: Warehouse) -> int:
        """The last seal of this group's own; a topic may have been filled by another warehouse or group before."""
        message = self._seal_message(view)
        if message is None:
            return -1
        number = int(message["sealed"])
        if number <= newest.cut and _seals(message, warehouse.cut(number)):
            return number
        # Our own was the last one. (One past the newest cut may be of a cut that was lost: a backup was restored.)
        if number <= newest.cut and newest.sealed >= 0 and view in warehouse.cut(newest.sealed).versions:
            raise self._shared(self._topics[view])
        log.warning(
            "topic %s: its last seal, %d, is of no cut of this group: another group or warehouse has filled it before",
            self._topics[view], number,
        )  # fmt: skip
        return -1

    def publish_stored(self, warehouse: Warehouse, cut: Cut, views: Iterable[str] | None = None) -> None:
        """Sends a committed cut as the warehouse holds it, however large."""
        before = warehouse.cut(cut.cut - 1).last_update if cut.cut else cut.last_update
        first, last = before + 1, cut.last_update
        views = self._topics.keys() & cut.versions.keys() if views is None else views
        changes = {view: warehouse.changes(view, first, last) for view in views}
        self.publish(cut, warehouse.updates(first, last), changes)

    def publish(self, cut: Cut, updates: pa.Table, changes: Mapping[str, Iterable[pa.Table]]) -> None:
        """Sends a committed cut: per view its changes, in the order of updates, and the seal.

        ``changes`` names every view to seal, even with no change. ``updates`` are all updates of the cut. On
        an error nothing of the cut is to be seen; ``catch_up`` then sends it again.
        """
        producer = self._connect()
        with self._failing(producer):
            producer.begin_transaction()
            sent: dict[str, list[int]] = {self._topics[view]: [] for view in changes}
            for view, tables in changes.items():
                topic = self._topics[view]
                for message in view_messages(view, updates, tables):
                    _require_size(view, topic, message)
                    self._produce(producer, topic, message, sent[topic])
                self._produce(producer, topic, seal(view, cut), sent[topic])
            fault.reached("topics-sent")
            self._commit(producer)
            producer.poll(0)
        for topic, offsets in sent.items():
            self._note(topic, offsets)
        fault.reached("topics")

    def _note(self, topic: str, offsets: list[int]) -> None:
        """Messages of a topic follow one another, and a transaction's last one is followed by its end."""
        if not offsets:
            return
        first, last = min(offsets), max(offsets)
        if first < 0:  # the broker had it already, from a try whose answer was lost, and does not say where
            self._ends.pop(topic, None)
            return
        if first > self._ends.get(topic, first) or last - first >= len(offsets):
            self._mixed = topic
        self._ends[topic] = last + 2

    def last_seal(self, view: str) -> int:
        """The last cut that the view's topic holds whole, or -1."""
        message = self._seal_message(view)
        return -1 if message is None else int(message["sealed"])

    def _seal_message(self, view: str) -> dict[str, Any] | None:
        consumer = Consumer(
            {
                **self._client,
                "group.id": self._id,  # never joined or committed to; the client insists on one
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            },
            logger=_SILENT,
        )
        try:
            with _world(f"{self._bootstrap}: topic {self._topics[view]}"):
                return self._last_seal(consumer, self._topics[view])
        finally:
            consumer.close()

    def close(self) -> None:
        """Forgets the connection; the topics hold what was published."""
        self._producer = None

    def _last_seal(self, consumer: Consumer, topic: str) -> dict[str, Any] | None:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=self._patience)
        tail = _TAIL
        while True:
            start = max(low, high - tail)
            found = [m for m in self._messages(consumer, topic, start) if "sealed" in m]
            if found or start == low:
                return found[-1] if found else None
            tail *= 16

    def _messages(self, consumer: Consumer, topic: str, start: int) -> Iterator[dict[str, Any]]:
        """The committed messages from ``start`` to the end as it is now."""
        consumer.assign([TopicPartition(topic, 0, start)])
        while True:
            message = consumer.poll(self._patience)
            if message is None:
                raise KafkaError.at(
                    f"{self._bootstrap}: topic {topic}", "it cannot be read to its end", "check the broker"
                )
            if message.error() is None:
                yield orjson.loads(message.value())
            elif message.error().code() == Reason._PARTITION_EOF:
                return
            else:
                raise KafkaException(message.error())

    def _connect(self) -> Producer:
        if self._producer is None:
            producer = Producer(
                {
                    **self._client,
                    "transactional.id": self._id,
                    "transaction.timeout.ms": 300_000,
                    "linger.ms": 2,
                    "compression.type": "lz4",
                    "message.max.bytes": LARGEST_MESSAGE + ENVELOPE,  # up to there the broker's own limit decides
                    "queue.buffering.max.kbytes": 2 * LARGEST_MESSAGE // 1024,  # more than one must fit
                    "queue.buffering.max.messages": 200_000,
                },
                logger=_SILENT,
            )
            with _world(self._bootstrap):
                producer.init_transactions(self._patience)
            self._producer = producer
        return self._producer

    def _produce(self, producer: Producer, topic: str, message: bytes, sent: list[int]) -> None:
        def delivered(error: Any, told: Any) -> None:
            if error is None:
                sent.append(told.offset())

        while True:
            try:
                producer.produce(topic, message, on_delivery=delivered)
                return
            except BufferError:
                producer.poll(0.05)

    def _commit(self, producer: Producer) -> None:
        """Commits, again if the broker only asks for patience: a repeated commit is still one commit."""
        for last in (False, False, True):
            try:
                producer.commit_transaction(self._patience)
                return
            except KafkaException as error:
                if last or not error.args[0].retriable():
                    raise

    @contextmanager
    def _failing(self, producer: Producer) -> Iterator[None]:
        """After any error the transaction is given up, and the next one starts on a new connection."""
        try:
            with _world(self._bootstrap):
                yield
        except BaseException:
            self._producer, self._ends = None, {}  # what is given up takes offsets too
            with suppress(KafkaException):
                producer.purge()
                producer.abort_transaction(5.0)
            raise


def _require_size(view: str, topic: str, message: bytes) -> None:
    """Raises RowTooLarge for a message that nobody can send, however often it is tried."""
    if len(message) > LARGEST_MESSAGE:
        size, most = len(message) / 1e6, LARGEST_MESSAGE / 1e6
        what = f"a row of view {view} takes {size:,.0f} MB, and a message {most:,.0f} at most"
        raise RowTooLarge.at(f"topic {topic}", what, "take its large columns out of the view")


def _seals(message: Mapping[str, Any], cut: Cut) -> bool:
    """Whether the message is the cut's seal: groups number their cuts alike, but stand elsewhere."""
    return bool(message["last_update"] == cut.last_update and message["positions"] == cut.positions)


@contextmanager
def _world(place: str) -> Iterator[None]:
    """Kafka's own errors, as ours."""
    try:
        yield
    except KafkaException as error:
        reason = error.args[0]
        if reason.code() in (Reason._FENCED, Reason.INVALID_PRODUCER_EPOCH):
            what, remedy = "another job publishes for this warehouse", "stop that job first"
        elif reason.code() in (Reason.MSG_SIZE_TOO_LARGE, Reason._MSG_TIMED_OUT):
            what, remedy = f"a message was not taken ({reason.str()})", "raise the topic's max.message.bytes"
        else:
            what, remedy = (
                f"Kafka does not answer as it should ({reason.str()})",
                "check that the broker runs",
            )
        raise KafkaError.at(place, what, remedy) from None
