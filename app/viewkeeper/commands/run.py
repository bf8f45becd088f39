"""``viewkeeper run``: the job."""

from __future__ import annotations

import argparse
import logging

from viewkeeper.job.run import run_job


def run(args: argparse.Namespace) -> int:
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return run_job(args.conf, args.until_idle)
