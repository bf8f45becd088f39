"""Spark's daemon of Python workers, for a job that ends by signals.

A service manager sends its signal to every process of the job. A worker that died of it would break off the batch
which the job is about to finish. Blocked here, they are blocked in every worker too; all of them end when the JVM
closes the daemon's standard input, as it does when it ends, however it ends.
"""

from __future__ import annotations

import signal

from pyspark import daemon

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    daemon.manager()
