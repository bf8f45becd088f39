"""``viewkeeper tail``: the messages of a view's topic, as they are committed."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Reason

from viewkeeper import signals
from viewkeeper.commands import status_text as say
from viewkeeper.commands import tail_text
from viewkeeper.commands.kafka import unreachable
from viewkeeper.commands.names import require_view
from viewkeeper.config import Config, load_config
from viewkeeper.errors import KafkaError
from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.warehouse.brokers import metadata

_STEP = 5.0
"""Seconds that a broker may take to answer."""


def run(args: argparse.Namespace) -> int:
    """Prints messages until the end of the topic or, following, until Ctrl-C, which is the way to end it."""
    config = load_config(args.conf)
    require_view(config, args.view)
    show = _show_text if (args.format or ("text" if sys.stdout.isatty() else "json")) == "text" else _show_json
    signals.interrupt()
    try:
        for message in _messages(config, config.views[args.view].topic, args):
            show(message.value())
            # A follower sees each message at once; a pile of old ones is written in blocks.
            if not args.no_follow:
                sys.stdout.flush()
    except KafkaException as e:
        raise unreachable(config, e) from None
    return 0


def _show_json(value: bytes) -> None:
    print(value.decode("utf-8", "replace"))


def _show_text(value: bytes) -> None:
    """Lines no longer than a terminal's; where there is none, as long as they are."""
    console = say.console()
    for line in tail_text.lines(value):
        console.print(
            line, no_wrap=True, overflow="ellipsis" if console.is_terminal else "ignore", crop=console.is_terminal
        )


def _messages(config: Config, topic: str, args: argparse.Namespace) -> Iterator[Message]:
    settings = config.kafka.client(
        group_id="viewkeeper-tail",
        isolation_level="read_committed",
        enable_auto_commit=False,
        enable_partition_eof=True,
        auto_offset_reset="earliest",
    )
    patiently(
        lambda: metadata(config.kafka.client(), _STEP), seconds=FIRST_START
    )  # it knows why, where nobody is let in
    consumer = Consumer(settings)
    try:
        low, high = patiently(lambda: _bounds(consumer, config, topic), seconds=FIRST_START)
        yield from (_all(consumer, topic, low) if args.from_start else _last(consumer, topic, low, high, args.last))
        while not args.no_follow:
            if (message := _next(consumer)) is not None:
                yield message
    finally:
        consumer.close()


def _bounds(consumer: Consumer, config: Config, topic: str) -> tuple[int, int]:
    """The offsets of the topic's first message and of the one after its last."""
    try:
        found = consumer.list_topics(topic, timeout=_STEP).topics[topic]
        if found.error is not None:
            raise KafkaError.at(f"topic {topic}", "does not exist", f"run: viewkeeper init {config.pasted}")
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_STEP)
    except KafkaException as e:
        raise unreachable(config, e) from None
    return low, high


def _all(consumer: Consumer, topic: str, start: int) -> Iterator[Message]:
    """Every message from an offset to the end of the topic as it is reached."""
    consumer.assign([TopicPartition(topic, 0, start)])
    while True:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            yield message
        elif message.error().code() == Reason._PARTITION_EOF:
            return
        else:
            raise KafkaException(message.error())


def _last(consumer: Consumer, topic: str, low: int, high: int, wanted: int) -> Iterator[Message]:
    """The last ``wanted`` messages, then the consumer stands at the end.

    Commit markers take offsets too, so the way back is taken in growing steps.
    """
    step = 2 * wanted + 8
    while True:
        start = max(low, high - step)
        last = deque(_all(consumer, topic, start), maxlen=wanted)
        if len(last) == wanted or start == low:
            yield from last
            return
        step *= 4


def _next(consumer: Consumer) -> Message | None:
    """The next message, or None if none came for a moment; the client itself waits out what passes."""
    message = consumer.poll(0.5)
    if message is None or message.error() is None:
        return message
    if message.error().fatal():
        raise KafkaException(message.error())
    return None
