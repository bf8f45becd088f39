"""What stands on the command line, as a value: each reader says in words what is wrong with the text."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta


def count(text: str) -> int:
    """A number that counts something."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, not {text!r}")
    return int(text)


def age(text: str) -> timedelta:
    """A duration as the configuration has them, or none at all (0s)."""
    from viewkeeper.config_values import duration

    if re.fullmatch(r"0+\s*(ms|s|m|h|d)", text.strip()):
        return timedelta(0)
    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pace(text: str) -> timedelta:
    """A duration that a screen can keep up with."""
    if (asked := age(text)) < timedelta(milliseconds=100):
        raise argparse.ArgumentTypeError(f"must be at least 100ms, not {text!r}")
    return asked


def level(text: str) -> str:
    """A level of consistency; empty means the highest there is."""
    if not re.fullmatch(r"(complete(-[1-9][0-9]{0,8})?|strong|weak|convergent)?", text):
        raise argparse.ArgumentTypeError(
            f"must be complete, complete-N (such as complete-10), strong, weak or convergent, not {text!r}"
        )
    return text
