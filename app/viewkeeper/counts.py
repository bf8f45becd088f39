"""Counts as people say them: 1 view, 2 views, 1,234 rows."""

from __future__ import annotations


def some(number: int, noun: str) -> str:
    """So many of something; nouns here take an s."""
    return f"{number:,} {of(number, noun)}"


def of(number: int, noun: str) -> str:
    """The noun alone, as it stands behind so many."""
    return noun if number == 1 else f"{noun}s"


def are(number: int) -> str:
    """The verb that goes with so many."""
    return "is" if number == 1 else "are"
