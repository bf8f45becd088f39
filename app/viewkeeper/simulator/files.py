"""A history as a small text that people can read, mend and send to each other (JSON, with a version).

    {"format": "viewkeeper history", "version": 1, "algorithm": "strobe", "options": {}, "seed": null,
     "relations": [{"source": "x", "name": "r1", "columns": {"A": "integer", "B": "integer"}, "key": ["A"]}],
     "sql": "SELECT …", "initial": {"x.r1": [[1, 2]]},
     "transactions": [{"id": "t1", "parts": {"x": [["delete", "r1", [1, 2]]]}}],
     "events": ["commit 0", "deliver x"]}

Reading refuses whatever could not have happened: rows that do not fit their relation, deletions of rows that are not
there, events of sources that do not exist. Whether the algorithm is known is left to the caller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from viewkeeper.algebra.tiny import Name, Row
from viewkeeper.algebra.types import Column, Kind, Relation, Type
from viewkeeper.algorithms.protocol import Op
from viewkeeper.errors import UsageError, ViewError
from viewkeeper.simulator.history import (
    Commit,
    Crash,
    Delay,
    Deliver,
    Duplicate,
    Evaluate,
    Event,
    History,
    Return,
    Show,
    Transaction,
    Workload,
)
from viewkeeper.simulator.shrink import first_impossible

FORMAT = "viewkeeper history"
VERSION = 1

Value = int | float | str | bool | None
_KINDS: Mapping[Kind, tuple[type, ...]] = {
    Kind.INTEGER: (int,),
    Kind.FLOAT: (int, float),
    Kind.TEXT: (str,),
    Kind.BOOLEAN: (bool,),
}
"""The types of columns that JSON has values for."""

_BY_SOURCE: Mapping[str, Callable[[str], Event]] = {
    "evaluate": Evaluate,
    "deliver": Deliver,
    "return": Return,
    "duplicate": Duplicate,
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Relation(_Strict):
    source: str = Field(min_length=1)
    name: str = Field(min_length=1)
    columns: dict[str, Literal["integer", "float", "text", "boolean"]] = Field(min_length=1)
    key: list[str] = []


class _Transaction(_Strict):
    id: str
    parts: dict[str, list[list[Any]]] = Field(min_length=1)


class _File(_Strict):
    format: str
    version: int
    algorithm: str
    options: dict[str, int | bool] = {}
    seed: int | None = None
    relations: list[_Relation] = Field(min_length=1)
    sql: str
    initial: dict[str, list[list[Value]]] = {}
    transactions: list[_Transaction]
    events: list[str] = []


# Writing ---------------------------------------------------------------------------------------------------------


def dumps(history: History) -> str:
    """The history as text, one relation, transaction and so on a line; ``loads`` gives the same history back."""
    workload = history.workload
    head = {"format": FORMAT, "version": VERSION, "algorithm": history.algorithm}
    head |= {"options": dict(history.options), "seed": history.seed, "sql": workload.sql}
    fields = [f'"{key}": {_json(value)}' for key, value in head.items()]
    fields.append(_block("relations", "[]", map(_json, map(_relation, workload.relations))))
    rows = (f"{_json(_dotted(name))}: {_json([list(row) for row in rows])}" for name, rows in workload.initial.items())
    fields.append(_block("initial", "{}", rows))
    fields.append(_block("transactions", "[]", map(_json, map(_transaction, workload.transactions))))
    fields.append(_block("events", "[]", _wrapped([_json(_event_text(event)) for event in history.events])))
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _block(key: str, brackets: str, lines: Iterator[str]) -> str:
    inside = ",\n".join(f"  {line}" for line in lines)
    return f'"{key}": {brackets[0]}\n{inside}\n{brackets[1]}' if inside else f'"{key}": {brackets}'


def _wrapped(words: list[str]) -> Iterator[str]:
    """Events in lines that fit a screen."""
    line = ""
    for word in words:
        if line and len(line) + len(word) > 96:
            yield line
            line = ""
        line += f"{', ' if line else ''}{word}"
    if line:
        yield line


def _dotted(name: Name) -> str:
    return f"{name[0]}.{name[1]}"


def _relation(relation: Relation) -> dict[str, Any]:
    assert all(c.type.kind in _KINDS for c in relation.columns), "JSON has no values of such a type"
    columns = {c.name: c.type.kind.value for c in relation.columns}
    return {"source": relation.source, "name": relation.name, "columns": columns, "key": list(relation.key)}


def _transaction(transaction: Transaction) -> dict[str, Any]:
    parts = {source: [_change(op) for op in ops] for source, ops in transaction.parts.items()}
    return {"id": transaction.id, "parts": parts}


def _change(op: Op) -> list[Any]:
    return ["insert" if op.count > 0 else "delete", op.relation, list(op.row)]


def _event_text(event: Event) -> str:
    if isinstance(event, Commit):
        return f"commit {event.index}"
    if isinstance(event, Crash):
        return "crash"
    if isinstance(event, Show):
        return f"show {event.source} {event.ordinal}"
    if isinstance(event, Delay):
        return f"delay {event.source} {event.events}"
    return f"{type(event).__name__.lower()} {event.source}"


# Reading ---------------------------------------------------------------------------------------------------------


def loads(text: str, file: str) -> History:
    """The history that a text tells; raises UsageError with the place in ``file`` and what is wrong there."""
    return _Reader(file).history(text)


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file

    def wrong(self, place: str, what: str, remedy: str = "") -> UsageError:
        return UsageError.at(f"{self.file}: {place}" if place else self.file, what, remedy)

    def history(self, text: str) -> History:
        file = self._parsed(text)
        relations = tuple(self._relation(i, each) for i, each in enumerate(file.relations))
        catalog = {(r.source, r.name): r for r in relations}
        if len(catalog) < len(relations):
            raise self.wrong("relations", "one of them is there twice", "leave one out")
        initial = {self._name(catalog, key): self._rows(catalog, key, rows) for key, rows in file.initial.items()}
        transactions = tuple(self._transaction(catalog, i, each) for i, each in enumerate(file.transactions))
        if len({t.id for t in transactions}) < len(transactions):
            raise self.wrong("transactions", "two of them have the same id", "give each its own")
        workload = Workload(relations, file.sql, initial, transactions)
        self._possible(workload)
        events = tuple(self._event(workload, i, each) for i, each in enumerate(file.events))
        return History(workload, file.algorithm, file.options, events, file.seed)

    def _parsed(self, text: str) -> _File:
        try:
            data = json.loads(text)
        except json.JSONDecodeError as e:
            what = f"is not JSON: {e.msg[:1].lower()}{e.msg[1:]}"
            raise self.wrong(f"line {e.lineno}, column {e.colno}", what, _SAVE_AGAIN) from None
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise self.wrong("format", f"is not {FORMAT!r}, so this is no saved history", _SAVE_AGAIN)
        if "version" not in data:
            raise self.wrong("version", "is missing", _SAVE_AGAIN)
        if data["version"] != VERSION:
            raise self.wrong("version", f"is {_json(data['version'])}, and only {VERSION} can be read", _SAVE_AGAIN)
        try:
            return _File.model_validate(data)
        except ValidationError as e:
            first = e.errors(include_url=False)[0]
            raise self.wrong(_path(first["loc"]), _words(first), _SAVE_AGAIN) from None

    def _relation(self, index: int, each: _Relation) -> Relation:
        unknown = [name for name in each.key if name not in each.columns]
        if unknown:
            raise self.wrong(f"relations[{index}].key", f"{unknown[0]} is no column of {each.name}")
        columns = tuple(Column(name, Type(Kind(kind))) for name, kind in each.columns.items())
        return Relation(each.source, each.name, columns, tuple(each.key))

    def _name(self, catalog: Mapping[Name, Relation], key: str) -> Name:
        name = next((name for name in catalog if _dotted(name) == key), None)
        if name is None:
            raise self.wrong(f"initial.{key}", "there is no such relation", f"use {_listed(map(_dotted, catalog))}")
        return name

    def _rows(self, catalog: Mapping[Name, Relation], key: str, rows: list[list[Value]]) -> tuple[Row, ...]:
        relation = catalog[self._name(catalog, key)]
        return tuple(self._row(relation, row, f"initial.{key}[{i}]") for i, row in enumerate(rows))

    def _row(self, relation: Relation, values: Any, place: str) -> Row:
        names = ", ".join(c.name for c in relation.columns)
        if not isinstance(values, list) or len(values) != len(relation.columns):
            raise self.wrong(place, f"is no row of {relation.name}({names})")
        for column, value in zip(relation.columns, values, strict=True):
            if value is not None and type(value) not in _KINDS[column.type.kind]:
                raise self.wrong(place, f"{column.name} is {_json(value)}, which is no {column.type}")
        return tuple(values)

    def _transaction(self, catalog: Mapping[Name, Relation], index: int, each: _Transaction) -> Transaction:
        parts = {}
        for source, changes in each.parts.items():
            place = f"transactions[{index}].parts.{source}"
            if source not in {name for name, _ in catalog}:
                raise self.wrong(place, "there is no such source", f"use {_listed(s for s, _ in catalog)}")
            if not changes:
                raise self.wrong(place, "is empty", "leave the source out, or say what changed")
            parts[source] = tuple(self._op(catalog, source, c, f"{place}[{i}]") for i, c in enumerate(changes))
        return Transaction(each.id, parts)

    def _op(self, catalog: Mapping[Name, Relation], source: str, change: list[Any], place: str) -> Op:
        if len(change) != 3 or change[0] not in ("insert", "delete"):
            raise self.wrong(place, f"is no change: {_json(change)}", 'write ["insert", relation, row] or "delete"')
        word, relation, row = change
        if not isinstance(relation, str) or (source, relation) not in catalog:
            raise self.wrong(place, f"{source} has no relation {_json(relation)}")
        row = self._row(catalog[(source, relation)], row, place)
        return Op(relation, row, 1 if word == "insert" else -1)

    def _possible(self, workload: Workload) -> None:
        try:
            _ = workload.tiny
        except ViewError as e:
            raise self.wrong("sql", "; ".join(p.said for p in e.problems)) from None
        index = first_impossible(workload)
        if index is not None:
            place = "initial" if index < 0 else f"transactions[{index}]"
            raise self.wrong(place, "cannot happen: it deletes a row that is not there, or adds a key that is")

    def _event(self, workload: Workload, index: int, text: str) -> Event:
        match text.split():
            case ["crash"]:
                return Crash()
            case ["commit", number] if number.isdecimal() and int(number) < len(workload.transactions):
                return Commit(int(number))
            case ["show", source, ordinal] if source in workload.sources and ordinal.isdecimal():
                return Show(source, int(ordinal))
            case ["delay", source, events] if source in workload.sources and events.isdecimal():
                return Delay(source, int(events))
            case [word, source] if word in _BY_SOURCE and source in workload.sources:
                return _BY_SOURCE[word](source)
        words = (
            "commit NUMBER, evaluate SOURCE, deliver SOURCE, return SOURCE, show SOURCE NUMBER, duplicate SOURCE, "
            "delay SOURCE EVENTS, crash"
        )
        raise self.wrong(f"events[{index}]", f"{text!r} is no event of this history", f"use {words}")


_SAVE_AGAIN = "mend it, or save a history anew with lab run --save"

_WORDS = {
    "missing": "is missing",
    "extra_forbidden": "is not known",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "too_short": "is empty",
    "string_too_short": "is empty",
}


def _words(finding: Any) -> str:
    said = str(finding["msg"])
    return _WORDS.get(finding["type"], f"{said[:1].lower()}{said[1:]}")


def _path(location: tuple[int | str, ...]) -> str:
    """``transactions[0].parts`` for ("transactions", 0, "parts")."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _listed(names: Iterator[str]) -> str:
    return " or ".join(dict.fromkeys(names))
