"""The Spark session: small, quiet, and tuned for many small micro-batches."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from pyspark import SparkConf, SparkContext, java_gateway
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from viewkeeper import signals
from viewkeeper.errors import UsageError
from viewkeeper.job import python_daemon
from viewkeeper.job.jvm import MEMORY, mute_py4j
from viewkeeper.job.patience import Stopped
from viewkeeper.warehouse.streams import storage

_LOOK_EVERY = 0.05

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

# Where driver and workers are one process and its children: nobody else is to find a door, or to disturb them.
_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.daemon.module": python_daemon.__name__,
}

# On a cluster the driver must listen where executors reach it, so it asks who they are.
_CLUSTER = {"spark.authenticate": "true"}
_MAKES_SECRETS = ("yarn", "k8s:")

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
    """A session for the job. What spark-submit or a properties file has set is kept; the rest gets our defaults.

    Stopped, if it was told to stop before the session was there.
    """
    given = SparkConf()
    builder: Any = SparkSession.builder
    for key, value in (_DEFAULTS | _doors(given)).items():
        if not given.contains(key) and not (key == "spark.driver.memory" and MEMORY in os.environ):
            builder = builder.config(key, value)
    if not _submitted() and not given.contains("spark.driver.extraJavaOptions"):
        option = f"-Dlog4j2.configurationFile={_log_settings(log_file).as_uri()}"
        builder = builder.config("spark.driver.extraJavaOptions", option)
    if not _submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers need what is installed here
        with _standard_error_to(log_file.with_name("spark-stderr.log")), _own_jvm(stop):
            return builder.getOrCreate()
    with _quiet_jvm(log_file):
        session = builder.getOrCreate()
    _stop_on_jvm_signal(session, stop)
    return session


def _doors(given: SparkConf) -> dict[str, str]:
    """Where Spark listens, and to whom."""
    master = given.get("spark.master", _DEFAULTS["spark.master"]) or ""
    if re.match(r"local(\[|$)", master):
        return _LOCAL
    if not (master.startswith(_MAKES_SECRETS) or given.contains("spark.authenticate")):
        what = f"executors of {master} would not have to say who they are: spark.authenticate is not set"
        remedy = "set it to true, with spark.authenticate.secret as the cluster has it, or to false in a closed network"
        raise UsageError.at("spark", what, remedy)
    return _CLUSTER


@contextmanager
def _own_jvm(stop: threading.Event) -> Iterator[None]:
    """The JVM that is started inside ignores what asks our process group to end: the batch in hand needs it.

    While it starts, nothing needs it yet: told to stop then, we kill it, and do not wait until it is up. Later it ends
    with us: its standard input is ours. PySpark gives no other hold of how it starts it.
    """
    popen, started, is_up = java_gateway.Popen, list[Any](), threading.Event()

    def start(command: Any, **how: Any) -> Any:
        started.append(popen(command, **{**how, "preexec_fn": signals.ignore}))
        return started[-1]

    def watch() -> None:
        while not is_up.wait(_LOOK_EVERY):
            if stop.is_set():
                for process in started:
                    process.kill()

    watcher = threading.Thread(target=watch, name="jvm", daemon=True)
    mute_py4j()
    java_gateway.Popen = start
    watcher.start()
    try:
        yield
    except Exception as error:
        if stop.is_set():
            raise Stopped from error
        raise
    finally:
        is_up.set()
        watcher.join()
        java_gateway.Popen = popen
    if stop.is_set():  # it may have been killed in the last moment
        raise Stopped


def _log_settings(log_file: Path) -> Path:
    """A file that tells a JVM to write its warnings to this one."""
    settings = log_file.with_name("log4j2.properties")
    with storage(log_file.parent):
        log_file.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(_LOG4J.format(file=_log4j_value(str(log_file))))
    return settings


@contextmanager
def _quiet_jvm(log_file: Path) -> Iterator[None]:
    """Keeps what the JVM of spark-submit does off the terminal, unless somebody has said what it is to log.

    It would write everything there: a dozen lines for every batch. Spark sets up its log once more when the session
    is made, by the standard error of that moment; so the log is led away before, which closes what it has, and after.
    """
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    named = [jvm.System.getProperty(name) for name in ("log4j2.configurationFile", "log4j.configurationFile")]
    if any(named) or jvm.Thread.currentThread().getContextClassLoader().getResource("log4j2.properties") is not None:
        yield
        return
    settings = jvm.java.net.URI(_log_settings(log_file).as_uri())
    log4j = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    terminal = jvm.System.err
    jvm.System.setErr(jvm.java.io.PrintStream(str(log_file.with_name("spark-stderr.log"))))
    log4j.setConfigLocation(settings)
    try:
        yield
    finally:
        jvm.System.setErr(terminal)
    log4j.setConfigLocation(settings)


def _log4j_value(text: str) -> str:
    """As a properties file of log4j has it: Latin-1, with escapes, and ``${`` begins what is looked up."""
    units = memoryview(text.replace("${", "$${").encode("utf-16-le", "surrogatepass")).cast("H")
    return "".join(chr(u) if (u < 128 and chr(u).isalnum()) or chr(u) == "/" else f"\\u{u:04x}" for u in units)


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
    for name in ("TERM", "INT", "HUP"):
        signal.handle(signal(name), _JvmSignalHandler(stop))


class _JvmSignalHandler:
    """sun.misc.SignalHandler, implemented here and called by the JVM."""

    def __init__(self, stop: threading.Event):
        self.stop = stop

    def handle(self, _: Any) -> None:
        self.stop.set()

    class Java:
        implements: ClassVar[list[str]] = ["sun.misc.SignalHandler"]
