"""How much is tried at random: ``make check`` looks at a few histories, ``make test`` at many."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("VIEWKEEPER_TESTS") == "thorough"


def scaled(few: int, many: int) -> int:
    """The number of cases to try in this run."""
    return many if THOROUGH else few
