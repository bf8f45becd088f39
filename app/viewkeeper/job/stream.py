"""The Structured Streaming query: tells the keeper of one micro-batch of all sources' topics after another.

A batch is a stretch of each topic. Spark plans it and keeps order; its messages are read by the keeper, in pieces of
bounded bytes. Spark's Kafka source counts messages alone, and collecting 200,000 of them may take any amount of memory.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from viewkeeper.errors import KafkaError

log = logging.getLogger("viewkeeper")

BATCH_MESSAGES = 200_000
"""At most this many messages in a micro-batch, so that a backlog is seen to move."""

FETCH_WAIT = "5"
"""Milliseconds the broker may hold back a fetch. Kafka's 500 would be most of a change's latency."""


Handle = Callable[[Mapping[str, int]], bool]
"""Takes a batch: per topic the offset that it reaches to."""

Needed = Callable[[Mapping[str, int]], bool]
"""Whether a batch that reaches to these offsets can hold a message that has not been received otherwise."""


@dataclass
class Stream:
    """One streaming query, started from offsets that the caller knows to be right.

    Spark's own checkpoint is made anew at every start: the newest cut alone says what has been handled.
    """

    spark: SparkSession
    options: Mapping[str, str]  # of Spark's Kafka source: bootstrap servers, security
    checkpoint: Path
    pause: timedelta  # the least time between two cuts
    stop: threading.Event

    def run(self, offsets: Mapping[str, int], handle: Handle, between: Callable[[], None], needed: Needed) -> None:
        """Hands batches to ``handle`` until it fails or ``stop`` is set; raises what ``handle`` raised.

        ``handle`` tells whether the batch made a cut: only cuts are paced. ``between`` is called all the while, a
        few times a second, by the thread that waits. A batch that is not ``needed`` is not handled.
        """
        failure: list[BaseException] = []
        busy, ending = threading.Lock(), threading.Event()

        def each_batch(_: DataFrame, number: int) -> None:
            with busy:
                if self.stop.is_set() or ending.is_set() or failure:
                    return
                try:
                    ends = self._ends(number)
                    if needed(ends) and handle(ends):
                        self.stop.wait(self.pause.total_seconds())
                except BaseException as error:  # Py4J would turn it into text; the waiting thread wants it whole
                    failure.append(error)

        shutil.rmtree(self.checkpoint, ignore_errors=True)
        name = f"viewkeeper {self.checkpoint.name}"  # no two queries of a session may have one name
        writer = self.source(offsets).writeStream.foreachBatch(each_batch).queryName(name)
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            self._wait(query, failure, between)
        finally:
            ending.set()
            with busy:  # a batch that has begun is finished first
                pass
            with suppress(Py4JError, OSError) if failure else nullcontext():
                # Without the lock: Spark waits here for a batch that begins meanwhile, and that one for the lock.
                query.stop()
            if failure:  # what a batch failed with says more than what the stream then said of it
                raise failure[0]

    def _ends(self, batch: int) -> dict[str, int]:
        """Per topic the offset that the batch reaches to, as Spark noted it before the batch began."""
        *_, ends = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()
        return {topic: partitions["0"] for topic, partitions in json.loads(ends).items()}

    def source(self, offsets: Mapping[str, int]) -> DataFrame:
        """The topics from these offsets on."""
        starting = {topic: {"0": offset} for topic, offset in offsets.items()}
        return (
            self.spark.readStream.format("kafka")
            .options(**self.options)
            .option("subscribe", ",".join(offsets))
            .option("startingOffsets", json.dumps(starting))
            .option("kafka.isolation.level", "read_committed")
            .option("kafka.fetch.max.wait.ms", FETCH_WAIT)
            .option("maxOffsetsPerTrigger", BATCH_MESSAGES)
            .option("failOnDataLoss", "true")
            .load()
        )

    def _wait(self, query: Any, failure: list[BaseException], between: Callable[[], None]) -> None:
        while not self.stop.is_set() and not failure:
            between()
            try:
                if query.awaitTermination(0.2):
                    break
            except (StreamingQueryException, PySparkException) as error:
                if not failure and "OutOfMemoryError" in str(error):
                    raise
                if not failure:
                    raise _stream_error(error) from error
                break


def _stream_error(error: Exception) -> KafkaError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return KafkaError.at("stream", reason, "see spark.log in the warehouse's folder logs")
