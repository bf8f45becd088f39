"""What keeping costs otherwise: Spark joins the three whole tables again and writes the view anew.

The tables are given to Spark as Delta tables beforehand, so that nothing but the recomputation is timed.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import pyarrow as pa
from deltalake import write_deltalake

from viewkeeper.bench.job_server import quiet
from viewkeeper.bench.world import SOURCES, SQL, SqliteWorld

_ROUNDS = 3
_AT_ONCE = 100_000

_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",  # the default of 50 is most of a small table's time
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def recompute_seconds(world: SqliteWorld) -> float:
    """The median seconds of one recomputation, by a Spark that has done it before."""
    folder = world.folder / "recompute"
    for source in SOURCES:
        _copy(world, source, folder)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_recompute, args=(folder, theirs))
    process.start()
    theirs.close()
    try:
        return float(median(ours.recv()[1:]))
    finally:
        process.join()


def _copy(world: SqliteWorld, source: str, folder: Path) -> None:
    with closing(world.connect(source)) as db:
        cursor = db.execute(f"SELECT * FROM {world.table(source)}")
        names = [column[0] for column in cursor.description]
        while rows := cursor.fetchmany(_AT_ONCE):
            columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
            write_deltalake(folder / source, pa.table(columns), mode="append")


def _recompute(folder: Path, pipe: Connection) -> None:
    from pyspark.sql import SparkSession

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet(folder / "spark.log")
    builder = SparkSession.builder
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    text = SQL
    for source, relation in (("shop", "orders"), ("crm", "customers"), ("stock", "products")):
        text = text.replace(f"{source}.{relation}", relation)
    seconds = []
    for _ in range(1 + _ROUNDS):
        begin = time.perf_counter()
        for source, relation in (("shop", "orders"), ("crm", "customers"), ("stock", "products")):
            spark.read.format("delta").load(str(folder / source)).createOrReplaceTempView(relation)
        spark.sql(text).write.format("delta").mode("overwrite").save(str(folder / "view"))
        seconds.append(time.perf_counter() - begin)
    spark.stop()
    pipe.send(seconds)
