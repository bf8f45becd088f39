"""``viewkeeper lab``: the algorithms in simulation; each part is a module of its own, imported when it is called."""

from __future__ import annotations

import argparse
import importlib

_MODULES = {"run": "running", "replay": "replaying", "anomaly": "anomalies", "table": "table"}


def run(args: argparse.Namespace) -> int:
    """Runs one part of the laboratory."""
    part = importlib.import_module(f"viewkeeper.commands.lab.{_MODULES[args.part]}")
    return int(part.run(args))
