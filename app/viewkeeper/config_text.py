"""From the configuration file's text to plain values: YAML without duplicate keys, ``${NAME}`` replaced."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import yaml

from viewkeeper.config_written import VARIABLE, Written, replaced, written_sql
from viewkeeper.errors import ConfigError, Problem

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
_TEXT_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"

LARGEST = 1_000_000
"""Bytes of a configuration: more is another file."""

MOST_VALUES, DEEPEST = 100_000, 50

Keys = tuple[str, ...]


def place(file: str, keys: Keys) -> str:
    """``conf/demo.yaml: views.orders.sql``"""
    return f"{file}: {'.'.join(keys)}" if keys else file


def read_tree(file: str) -> tuple[dict[str, Any], dict[str, Written], list[Problem]]:
    """The file as nested mappings with text keys, where its views' SQL stands, what is wrong with keys and variables.

    A file that cannot be read as a mapping at all is a ConfigError.
    """
    text = _read(file)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        problems = list(_key_problems(node, file, (), budget=itertools.count(1)))
        tree = loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, ValueError) as e:  # a date such as 2026-13-01 is a ValueError
        raise ConfigError.at(_mark(file, e), _plain(e), "correct the YAML") from None
    if tree is None:
        raise ConfigError.at(file, "is empty", "conf/full-example.yaml shows what it may say")
    if not isinstance(tree, dict):
        raise ConfigError.at(file, "is not a mapping", "start with keys such as kafka:, warehouse:, sources:, views:")
    return _substituted(tree, file, (), problems), written_sql(text, node), problems


class _Loader(yaml.SafeLoader):
    """YAML that ends at a depth which no configuration has: to read further would take its time, and the stack."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.YAMLError("it is nested deeper than any configuration")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _read(file: str) -> str:
    try:
        with open(file, "rb") as opened:  # never all of it: it may be a device
            data = opened.read(LARGEST + 1)
        if len(data) > LARGEST:
            what = f"is larger than any configuration ({LARGEST // 1_000_000} MB)"
            raise ConfigError.at(file, what, "give the path of a configuration file")
        return data.decode("utf-8")
    except FileNotFoundError:
        raise ConfigError.at(file, "does not exist", "give the path of a configuration file") from None
    except UnicodeDecodeError:
        raise ConfigError.at(file, "is not text in UTF-8", "save it as UTF-8") from None
    except OSError as e:
        raise ConfigError.at(file, f"cannot be read ({e.strerror})", "give the path of a readable file") from None


def _mark(file: str, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    return f"{file}: line {mark.line + 1}, column {mark.column + 1}" if mark else file


def _plain(error: Exception) -> str:
    """One line of plain words from YAML's own report."""
    said = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return "is not valid YAML: " + " ".join(str(said).split())


def _key_problems(
    node: yaml.Node | None, file: str, keys: Keys, above: tuple[int, ...] = (), *, budget: Iterator[int]
) -> Iterator[Problem]:
    """Keys that stand twice in one mapping (YAML would silently keep the last) or that are not text.

    ``budget`` counts what is looked at: aliases of aliases make a small file a tree without end.
    """
    if id(node) in above:
        raise yaml.YAMLError("an alias refers to a mapping or list that it is part of")
    if next(budget) > MOST_VALUES:
        raise yaml.YAMLError(f"it holds more than {MOST_VALUES} values")
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from _key_problems(item, file, (*keys, str(i)), above, budget=budget)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        if key.tag == _MERGE_TAG:
            continue
        name, line = str(key.value), key.start_mark.line + 1
        if key.tag != _TEXT_TAG:
            yield Problem(place(file, (*keys, name)), "YAML does not read this key as text", "put it in quotes")
        if name in lines:
            yield Problem(
                place(file, (*keys, name)),
                f"stands twice (lines {lines[name]} and {line})",
                "keep one of them",
            )
        lines.setdefault(name, line)
        yield from _key_problems(value, file, (*keys, name), above, budget=budget)


def _substituted(value: Any, file: str, keys: Keys, problems: list[Problem]) -> Any:
    """The value with every ``${NAME}`` replaced and ``$${`` unescaped; other than text keys are dropped."""
    if isinstance(value, dict):
        texts = {key: item for key, item in value.items() if isinstance(key, str)}
        return {key: _substituted(item, file, (*keys, key), problems) for key, item in texts.items()}
    if isinstance(value, list):
        return [_substituted(item, file, (*keys, str(i)), problems) for i, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match[1] is None:
            return "${"
        if not match[2] or not _VARIABLE_NAME.fullmatch(match[1]):
            problems.append(
                Problem(
                    place(file, keys),
                    f"{match[0]!r} names no variable",
                    "write ${NAME}, or $${ for a plain ${",
                )
            )
        elif match[1] not in os.environ:
            problems.append(
                Problem(
                    place(file, keys),
                    f"${{{match[1]}}} is not set",
                    f"set the environment variable {match[1]}",
                )
            )
        return replaced(match)

    return _writable(VARIABLE.sub(replace, value), file, keys, problems)


def _writable(text: str, file: str, keys: Keys, problems: list[Problem]) -> str:
    """The text without what no path, name or database takes; a problem says so."""
    if _UNWRITABLE.search(text):
        problems.append(Problem(place(file, keys), "has a NUL or half of a letter in it", "take that out"))
    return _UNWRITABLE.sub("", text)
