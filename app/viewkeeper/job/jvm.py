"""The JVM that Spark runs in: how much memory it gets, and what is said when it has ended."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from viewkeeper.errors import SparkEnded

MEMORY = "SPARK_DRIVER_MEMORY"
"""The variable of the environment that says how much memory the JVM gets, as Spark itself has it."""

_EXITING = 5.0
"""Seconds that a JVM whose connections are gone may take to end."""

_OUT_OF_MEMORY = "OutOfMemoryError"
_TAIL = 200_000


@contextmanager
def naming_its_end(spark: Any, logs: Path, stop: threading.Event) -> Iterator[None]:
    """If the JVM has ended, or has no memory left, that is what is raised, and not what came of it.

    Nothing is raised if ``stop`` is set: whoever stops a job may well send the signal to its JVM, too.
    """
    now = spark.sparkContext.getConf().get("spark.driver.memory")
    mute_py4j()
    try:
        yield
    except Exception as error:
        if (how := _ended(spark, error)) is not None:
            if stop.is_set():
                return
            raise SparkEnded.at("spark", _what(how, logs), _remedy(now, logs)) from error
        raise


def mute_py4j() -> None:
    """From now on the log has nothing of Py4J's: the error that it raises says enough."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Py4J tells of a lost JVM by a traceback for every connection."""
    return "py4j" not in record.pathname


def stop(spark: Any) -> None:
    """Ends the session; one whose JVM has ended needs no end."""
    with suppress(Py4JError, OSError, EOFError):
        spark.stop()


def _ended(spark: Any, error: BaseException) -> str | None:
    """How the JVM has ended, in words, if it has."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    lost = isinstance(error, Py4JNetworkError | OSError | EOFError)
    if process is not None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_EXITING if lost else 0)
        if process.returncode is not None:
            code = process.returncode
            return f"signal {-code}" if code < 0 else f"exit {code}"
    elif isinstance(error, Py4JNetworkError | ConnectionError):
        return "its connection is gone"
    if isinstance(error, Py4JError | PySparkException) and _OUT_OF_MEMORY in str(error):
        return _OUT_OF_MEMORY
    return None


def _what(how: str, logs: Path) -> str:
    return "its JVM is out of memory" if _tells_of_memory(how, logs) else f"its JVM has ended ({how})"


def _tells_of_memory(how: str, logs: Path) -> bool:
    if how == _OUT_OF_MEMORY:
        return True
    told = []
    for name in ("spark.log", "spark-stderr.log"):
        with suppress(OSError), (logs / name).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
            told.append(file.read())
    return any(_OUT_OF_MEMORY.encode() in text for text in told)


def _remedy(now: str | None, logs: Path) -> str:
    more = f"more than {now}" if now else "more memory"
    return f"give it {more}: set {MEMORY} (spark-submit: --driver-memory); see {logs / 'spark.log'}"
