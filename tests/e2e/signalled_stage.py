"""A program with Spark, of which every process is asked to end in the middle of a stage: ``signalled_stage LOG``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from viewkeeper.job.session import spark_session


def main(log: Path) -> None:
    spark = spark_session(log, threading.Event())
    jvm = spark.sparkContext._gateway.proc.pid

    def signalled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for pid in (jvm, os.getppid(), os.getpid()):
                for number in (signal.SIGTERM, signal.SIGINT):
                    os.kill(pid, number)
            yield batch

    for _ in range(2):  # the second stage needs the daemon too
        assert spark.range(0, 4, 1, 2).mapInArrow(signalled, "id long").toArrow().num_rows == 4
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
