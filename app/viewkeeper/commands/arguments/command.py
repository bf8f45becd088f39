"""A command as its help explains it, and the arguments that several commands share."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """What may be asked; ``arguments`` adds what goes with it to its parser."""

    name: str
    summary: str
    description: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]

    def add_to(self, parsers: argparse._SubParsersAction[Any], epilog: str = "") -> None:
        """Adds its parser to those of its kind; its help ends with the example, and ``epilog``."""
        parser = parsers.add_parser(
            self.name,
            help=self.summary,
            description=textwrap.fill(self.description, 90),
            epilog=f"example:\n  {self.example}{epilog}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.arguments(parser)


def conf(p: argparse.ArgumentParser) -> None:
    """Adds CONF."""
    p.add_argument("conf", metavar="CONF", help="the configuration file, such as conf/demo.yaml")


def view(p: argparse.ArgumentParser) -> None:
    """Adds CONF and VIEW."""
    conf(p)
    p.add_argument("view", metavar="VIEW", help="a view of the configuration")
