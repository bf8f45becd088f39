"""Topics read up to an offset: in pieces of bounded bytes, past what no reader sees, on a real broker."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer

from tests.conftest import SharedBroker, eventually, unique
from tests.core.test_queue import ids, inlet, insert
from viewkeeper.errors import TopicLost
from viewkeeper.messages import Received
from viewkeeper.queue import consumer
from viewkeeper.queue.consumer import bounds
from viewkeeper.queue.drain import Drain
from viewkeeper.queue.update_queue import UpdateQueue

pytestmark = pytest.mark.e2e

NEVER = threading.Event()


class Topic:
    """A topic that is written in transactions, as capture does, and a queue that reads it."""

    def __init__(self, broker: SharedBroker):
        self.name = broker.new_topic("shop")
        self.client = {"bootstrap.servers": broker.bootstrap}
        self.producer = Producer({**self.client, "transactional.id": unique("writer")})
        self.producer.init_transactions(30)
        self.inlet = inlet(topic=self.name)
        self.queue = UpdateQueue([self.inlet])
        self.drain = Drain(self.client)

    def send(self, *values: bytes, commit: bool = True) -> None:
        """Sends them in one transaction, whose marker may come out a little after the broker has agreed to it."""
        marker = self.end + len(values)
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(self.name, value)
        self.producer.flush(30)
        self.producer.commit_transaction(30) if commit else self.producer.abort_transaction(30)
        eventually(lambda: self.end > marker, 30, "the end of the transaction is in the topic")

    @property
    def end(self) -> int:
        return bounds(self.client, [self.name])[self.name][1]

    def read(self, end: int) -> list[Received]:
        return list(self.drain.to_offsets(self.queue, {self.name: end}, NEVER))


@pytest.fixture
def topic(broker: SharedBroker) -> Topic:
    return Topic(broker)


def test_a_stretch_is_read_in_pieces_of_few_bytes(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "PIECE_BYTES", 20_000)
    topic.send(*(insert(n, n, note="x" * 1000) for n in range(1, 101)))
    found = topic.read(topic.end)
    assert [i for received in found for i in ids(received)] == [*range(1, 101)]
    assert len(found) >= 5, "however fast they came"
    assert max(len(received.updates) for received in found) < 40


def test_what_no_reader_sees_at_the_end_is_passed_over(topic: Topic) -> None:
    topic.send(insert(1, 1))
    topic.send(insert(2, 2), commit=False)
    assert [ids(received) for received in topic.read(topic.end)] == [[1]]
    assert topic.inlet.offset == topic.end == 4, "one message, its commit, an aborted message, its abort"
    assert topic.read(topic.end) == []
    topic.send(insert(3, 3))
    assert [ids(received) for received in topic.read(topic.end)] == [[3]]


def test_a_stretch_ends_where_it_ends_and_the_next_begins_there(topic: Topic) -> None:
    topic.send(*(insert(n, n) for n in range(1, 6)))
    read = [i for received in topic.read(2) for i in ids(received)]
    assert read[:2] == [1, 2]
    rest = [i for received in topic.read(topic.end) for i in ids(received)]
    assert read + rest == [1, 2, 3, 4, 5]


def test_a_message_that_cannot_be_used_ends_the_stretch(topic: Topic) -> None:
    topic.send(insert(1, 1), b"{", insert(2, 2))
    found = topic.read(topic.end)
    assert [i for received in found for i in ids(received)] == [1]
    assert [r.offset for received in found for r in received.rejected] == [1]
    assert topic.inlet.offset == 1


def test_a_stretch_that_the_topic_no_longer_holds_is_named(topic: Topic, broker: SharedBroker) -> None:
    topic.send(insert(1, 1))
    topic.inlet.offset = 1_000
    with pytest.raises(TopicLost, match="still need offset 1000"):
        topic.read(2_000)


def test_a_stop_ends_a_stretch_and_skips_nothing(topic: Topic) -> None:
    topic.send(insert(1, 1))
    stopped = threading.Event()
    stopped.set()
    assert list(topic.drain.to_offsets(topic.queue, {topic.name: topic.end}, stopped)) == []
    assert topic.inlet.offset == 0
