"""Keeps an exact copy of a view in memory: the view at a cut, then its topic's messages after that cut's seal.

    python docs/follow_view.py CONF VIEW

The topic tells changes and not the load, so a reader starts from a cut: ``read_cut`` gives the rows and says after
which update they stand. Of the topic, it passes over what the cut holds and adds up what follows. Changes come as
(row, count): a row that occurs no more has the count 0. After each seal the copy is the view at that cut.

Read committed, and every update comes once, in order. Seals are numbered without gaps: if one is missing, retention
has removed messages, and the reader starts again from the newest cut. So it does when the view was loaded again
(``viewkeeper init --reload``), which no message tells: the new load begins with a cut that repeats the last update.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from deltalake import DeltaTable

import viewkeeper
from viewkeeper.config import Config, load_config
from viewkeeper.errors import UsageError, ViewkeeperError
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.rendering import json_values


class Gap(Exception):
    """The topic does not continue this copy: a new one is to be made."""


@dataclass
class Copy:
    """A view's rows, each with how often it occurs; ``sealed`` is the cut of its group that it stands at."""

    group: str
    columns: list[str]
    sealed: int
    update: int
    load: str
    rows: Counter[tuple[Any, ...]] = field(default_factory=Counter)

    def take(self, content: dict[str, Any]) -> bool:
        """Goes on by one message; tells whether the copy now is the view at a cut."""
        if "sealed" in content:
            return self._seal(content)
        if content["update"] > self.update:  # the cut that the copy was made from holds the others
            for change in content["changes"]:
                self._add(tuple(change["row"][name] for name in self.columns), change["count"])
        return False

    def _seal(self, content: dict[str, Any]) -> bool:
        if content["sealed"] <= self.sealed:
            return False
        if content["sealed"] != self.sealed + 1:
            raise Gap(f"cut {self.sealed + 1} is missing from the topic")
        self.sealed, self.update = content["sealed"], content["last_update"]
        return True

    def _add(self, row: tuple[Any, ...], count: int) -> None:
        self.rows[row] += count
        if not self.rows[row]:
            del self.rows[row]


def copied(config: Config, view: str) -> Copy:
    """The view at the newest cut."""
    while True:
        load = load_of(config, view)
        read = viewkeeper.read_cut(config.warehouse, view)
        if load == load_of(config, view):  # else it was loaded again meanwhile
            break
    table = read[view]
    columns = [name for name in table.column_names if name != "_count"]
    copy = Copy(read.group, columns, read.cut, read.last_update, load)
    for *row, count in zip(*(json_values(column) for column in table.columns), strict=True):
        copy.rows[tuple(row)] += count
    return copy


def load_of(config: Config, view: str) -> str:
    """Which load of the view its changes belong to."""
    folder = str(config.warehouse / "changes" / view)
    if not DeltaTable.is_deltatable(folder):
        raise UsageError.at(view, "is not loaded yet", f"run: viewkeeper init {config.pasted}")
    table = DeltaTable(folder)
    return table.metadata().configuration.get("viewkeeper.load") or ""


def messages(config: Config, view: str, copy: Copy) -> Iterator[dict[str, Any]]:
    """The topic's messages from a little before the copy's cut on, for ever."""
    topic = config.views[view].topic
    settings = {"group.id": "follow-view", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
    consumer = Consumer({**config.kafka.client(), **settings, "isolation.level": "read_committed"})
    made = WarehouseReader(config.warehouse, copy.group).cut(copy.sealed).committed_at - timedelta(minutes=1)
    [start] = consumer.offsets_for_times([TopicPartition(topic, 0, int(made.timestamp() * 1000))], timeout=30)
    # Without a message of that age: from the first one. The end is no place to start, it may be amid a transaction.
    consumer.assign([TopicPartition(topic, 0, start.offset if start.offset >= 0 else OFFSET_BEGINNING)])
    try:
        while True:
            message: Message | None = consumer.poll(1)
            if message is not None and message.error() is None:
                yield orjson.loads(message.value())
    finally:
        consumer.close()


def follow(config: Config, view: str) -> Iterator[Copy]:
    """The copy as it is first, and after every seal; made anew where the topic does not continue it."""
    while True:
        copy = copied(config, view)
        yield copy
        try:
            for content in messages(config, view, copy):
                before = copy.update
                if not copy.take(content):
                    continue
                if copy.update == before and load_of(config, view) != copy.load:
                    raise Gap(f"{view} was loaded again")
                yield copy
        except Gap as gap:
            print(f"{gap}: starting again from the newest cut", file=sys.stderr)


def main() -> int | str:
    """0 after Ctrl-C, or what is wrong."""
    parser = argparse.ArgumentParser(description="Keeps an exact copy of a view in memory, and tells how it grows.")
    parser.add_argument("conf", metavar="CONF", help="the configuration file")
    parser.add_argument("view", metavar="VIEW", help="a view that it defines and that is loaded")
    args = parser.parse_args()
    try:
        config = load_config(args.conf)
        if args.view not in config.views:
            parser.error(f"{args.conf} has no view {args.view}; it has {', '.join(config.views)}")
        for copy in follow(config, args.view):
            print(f"cut {copy.sealed}, update {copy.update}: {sum(copy.rows.values())} rows", flush=True)
    except (ViewkeeperError, KafkaException) as error:
        return f"follow_view: {error.args[0].str() if isinstance(error, KafkaException) else error}"
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
