"""``viewkeeper run``: the job."""

from __future__ import annotations

import argparse

from viewkeeper.commands.logs import show_log
from viewkeeper.job.run import run_job


def run(args: argparse.Namespace) -> int:
    show_log()
    return run_job(args.conf, args.until_idle)
