"""How many may ask the sources at the same time: a source may limit its connections, and those of threads stay open."""

from __future__ import annotations

from collections.abc import Iterable

from viewkeeper.managers.sources import Source

THREADS = 3
"""Managers that work at the same time in this process, if nothing speaks against it."""


def threads(sources: Iterable[Source]) -> int:
    """So many threads may ask these sources, and as many workers beside them; none if it would be only one."""
    limits = [source.readers // 2 for source in sources if source.readers is not None]
    number = min([THREADS, *limits])
    return number if number > 1 else 0


def workers(sources: Iterable[Source], wanted: int) -> int:
    """So many of Spark's workers may ask these sources, beside the threads."""
    sources = list(sources)
    limits = [source.readers - threads(sources) for source in sources if source.readers is not None]
    return min([wanted, *limits])
