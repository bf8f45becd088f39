"""Remedies that can be pasted: a command that an error tells gets the configuration's file, and the views it is for.

Who finds something wrong with a source knows neither; it writes ``viewkeeper init --reload``. Where the sentence is
told to somebody, this process knows its configuration, and completes it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

_COMMAND = re.compile(
    r"(?P<command>viewkeeper (?:init|run|capture))(?P<option> --reload| --remove)?"
    r"(?=$|[`'\"),;]| first\b| or | --forget )"
)
_SUBJECT = re.compile(r"\bsource (?P<source>\w+)|\btopic (?P<topic>[\w.-]*\w)|\bviews?[. /](?P<view>\w+)")


@dataclass(frozen=True)
class _Known:
    """The configuration of this process; ``users`` are the views of each source."""

    file: str
    topics: Mapping[str, str]  # the source of each topic
    users: Mapping[str, list[str]]
    views: frozenset[str]


_known: list[_Known] = []  # at most one: the newest


def know(file: str, topics: Mapping[str, str], views: Mapping[str, str]) -> None:
    """From now on, remedies are for this configuration: per source its topic, per view its SQL."""
    users = {source: [view for view, sql in views.items() if _names(sql, source)] for source in topics}
    _known[:] = [_Known(file, {topic: source for source, topic in topics.items()}, users, frozenset(views))]


def _names(sql: str, source: str) -> bool:
    """Whether a view's SQL may use a source: rather one view too many than one too few."""
    return re.search(rf'\b{re.escape(source)}"?\s*\.', sql, re.IGNORECASE) is not None


def completed(text: str) -> str:
    """The text, each command of ours in it as it can be pasted; a line is about one thing."""
    return "\n".join(map(_completed, text.split("\n"))) if _known else text


def _completed(line: str) -> str:
    known = _known[0]
    source, views = _subject(line, known)

    def complete(found: re.Match[str]) -> str:
        words = [f"{found['command']} {shlex.quote(known.file)}"]
        if found["option"]:
            words += [found["option"].strip(), *(views if "reload" in found["option"] else source)]
        return " ".join(words)

    return _COMMAND.sub(complete, line)


def _subject(line: str, known: _Known) -> tuple[list[str], list[str]]:
    """The source that a line is about, if it is about one, and the views to be loaded again; none means all."""
    for found in _SUBJECT.finditer(line):
        name: str = found["source"] or known.topics.get(found["topic"] or "") or ""
        if name in known.users:
            return [name], known.users[name]
        if found["view"] in known.views:
            return [], [found["view"]]
    return [], []
