"""``viewkeeper lab replay``: a saved history, or an example of the papers, step by step."""

from __future__ import annotations

import argparse
from pathlib import Path

from viewkeeper.commands.lab.choosing import checked_history
from viewkeeper.commands.lab.showing import Exhibit, console, keep, require_writable, scenario_of
from viewkeeper.config_problems import nearest
from viewkeeper.errors import UsageError
from viewkeeper.simulator.examples import EXAMPLES
from viewkeeper.simulator.files import loads
from viewkeeper.simulator.history import History
from viewkeeper.simulator.laboratory import replayed


def run(args: argparse.Namespace) -> int:
    """Shows what a history does."""
    history = EXAMPLES.get(args.file) or _loaded(args.file)
    subject = checked_history(args.file, history)
    require_writable(args.svg)
    exhibit = Exhibit(subject, history, replayed(history))
    out = console()
    exhibit.show_as(out, scenario_of(history.workload), f"{args.file}: ")
    keep(exhibit, None, args.svg, out)
    return 0


def _loaded(file: str) -> History:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        remedy = f"give the path of a saved history; of the examples, {nearest(file, EXAMPLES)}"
        raise UsageError.at(file, "does not exist", remedy) from None
    except UnicodeDecodeError:
        raise UsageError.at(file, "is no text, so it is no saved history", "save one with lab run --save") from None
    except OSError as e:
        what = f"cannot be read: {(e.strerror or str(e)).lower()}"
        raise UsageError.at(file, what, "give the path of a saved history") from None
    return loads(text, file)
