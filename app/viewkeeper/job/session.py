"""The Spark session: small, quiet, and tuned for many small micro-batches."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from pyspark import SparkConf
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

_DEFAULTS = {
    "spark.master": "local[2]",
    "spark.app.name": "viewkeeper",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A micro-batch costs what Spark writes about it: keep its log in plain files, ask for new offsets often.
    "spark.sql.streaming.checkpointFileManagerClass":
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.pollingDelay": "5ms",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.minBatchesToRetain": "5",
}  # fmt: skip

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n
"""


def spark_session(log_file: Path, stop: threading.Event) -> SparkSession:
    """A session for the job. What spark-submit or a properties file has set is kept; the rest gets our defaults."""
    given = SparkConf()
    builder: Any = SparkSession.builder
    for key, value in _DEFAULTS.items():
        if not given.contains(key):
            builder = builder.config(key, value)
    if not _submitted() and not given.contains("spark.driver.extraJavaOptions"):
        log_file.parent.mkdir(parents=True, exist_ok=True)
        settings = log_file.with_name("log4j2.properties")
        settings.write_text(_LOG4J.format(file=log_file))
        builder = builder.config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={settings.as_uri()}")
    if not _submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need what is installed here
    if not _submitted():
        with _standard_error_to(log_file.with_name("spark-stderr.log")):
            return builder.getOrCreate()
    session = builder.getOrCreate()
    _stop_on_jvm_signal(session, stop)
    return session


@contextmanager
def _standard_error_to(file: Path) -> Iterator[None]:
    """Sends standard error to a file meanwhile: the JVM started inside keeps it, and its warnings, off the terminal.

    The log of this process stays where it was: other groups work while one starts the JVM.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    shown = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler) and h.stream is sys.stderr]
    sys.stderr.flush()
    with open(os.dup(2), "w") as terminal, file.open("w") as target:
        for handler in shown:
            handler.setStream(terminal)
        os.dup2(target.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal.fileno(), 2)
            for handler in shown:
                handler.setStream(sys.stderr)


def _submitted() -> bool:
    """Whether spark-submit started the JVM, and the JVM started us."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _stop_on_jvm_signal(session: SparkSession, stop: threading.Event) -> None:
    """Under spark-submit it is the JVM that receives SIGTERM and would end at once; it shall ask us instead."""
    gateway = session.sparkContext._gateway
    ensure_callback_server_started(gateway)
    signal = gateway.jvm.sun.misc.Signal
    for name in ("TERM", "INT"):
        signal.handle(signal(name), _JvmSignalHandler(stop))


class _JvmSignalHandler:
    """sun.misc.SignalHandler, implemented here and called by the JVM."""

    def __init__(self, stop: threading.Event):
        self.stop = stop

    def handle(self, _: Any) -> None:
        self.stop.set()

    class Java:
        implements: ClassVar[list[str]] = ["sun.misc.SignalHandler"]
