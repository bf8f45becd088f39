"""The one configuration file: what it may say, and everything that is wrong with it at once.

kafka: {bootstrap: "127.0.0.1:9092"}
warehouse: ./warehouse
sources:
  shop: {kind: sqlite, path: ./shop.db}
views:
  orders: {sql: SELECT …}
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
)

from viewkeeper import remedies
from viewkeeper.algorithms.registry import ALGORITHMS
from viewkeeper.config_groups import AskedLevel, GroupConfig, Groups, SpannedSources, group_problems
from viewkeeper.config_kafka import KafkaConfig, kafka_problems
from viewkeeper.config_problems import nearest, problems_of
from viewkeeper.config_sources import KINDS, LONGEST_IDENTIFIER, AnySource, PostgresConfig, server
from viewkeeper.config_text import Keys, read_tree
from viewkeeper.config_values import (
    AtLeastOne,
    Duration,
    Name,
    Section,
    Topic,
    WarehousePath,
    at_least_one,
    duration,
    located,
)
from viewkeeper.config_written import Written
from viewkeeper.errors import ConfigError, Problem


def _fold(value: Any) -> Literal["auto", "every_cut"] | timedelta:
    if value in ("auto", "every_cut"):
        return value
    try:
        return duration(value)
    except ValueError:
        raise ValueError(f"must be auto, every_cut or a duration such as 30s, not {value!r}") from None


def _algorithm(value: str) -> str:
    if value not in OPTIONS:
        raise ValueError(f"there is no algorithm {value}; {nearest(value, OPTIONS)}")
    return value


def _every(value: Any) -> int | timedelta:
    """A number of updates, or a duration."""
    try:
        return at_least_one(value) if not isinstance(value, str) else duration(value)
    except ValueError:
        raise ValueError(f"must be a number of updates or a duration such as 30s, not {value!r}") from None


OPTIONS = {name: frozenset(entry.options) for name, entry in ALGORITHMS.items()}
"""Every algorithm that a view may name, and the options it has."""

ANY_OPTION = frozenset[str]().union(*OPTIONS.values())


class ViewConfig(Section):
    """``topic`` is always set in a loaded configuration; what stands below it are options of some algorithms.

    ``level`` is the least that the view must reach; its algorithm promises as much.
    """

    sql: str = Field(min_length=1)
    algorithm: Annotated[str, AfterValidator(_algorithm)] = "sweep"
    level: AskedLevel | None = None
    topic: Topic = ""  # the default is view.<view>

    parallel: bool | None = None
    pipeline: AtLeastOne | None = None
    bound: AtLeastOne | None = None
    complete_n: AtLeastOne | None = None
    every: Annotated[int | timedelta, PlainValidator(_every)] | None = None
    keyed: bool | None = None

    @property
    def options(self) -> dict[str, int | bool]:
        """What the file says about the algorithm's options, as the algorithm takes it."""
        given = {name: getattr(self, name) for name in sorted(OPTIONS[self.algorithm])}
        return {name: value for name, value in given.items() if isinstance(value, int)}


def _default_slots(sections: dict[str, Any]) -> dict[str, Any]:
    """Fills in the slots and publications that the file does not name; PostgreSQL takes small letters there."""
    return {
        name: section.model_copy(
            update={key: getattr(section, key) or f"viewkeeper_{name.lower()}" for key in ("slot", "publication")}
        )
        if isinstance(section, PostgresConfig)
        else section
        for name, section in sections.items()
    }


def _default_topics(pattern: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Fills in the topics that the file does not name."""

    def fill(sections: dict[str, Any]) -> dict[str, Any]:
        return {
            name: section.model_copy(update={"topic": section.topic or pattern.format(name)})
            for name, section in sections.items()
        }

    return fill


class Config(Section):
    """A whole, valid configuration; every path in it is absolute, every topic is named."""

    kafka: KafkaConfig
    warehouse: WarehousePath
    sources: Annotated[
        dict[Name, AnySource],
        Field(min_length=1),
        AfterValidator(_default_topics("{}.updates")),
        AfterValidator(_default_slots),
    ]
    views: Annotated[
        dict[Name, ViewConfig],
        Field(min_length=1),
        AfterValidator(_default_topics("view.{}")),
    ]
    groups: Groups = Field(default_factory=dict)
    global_txn: list[SpannedSources] = Field(default_factory=list)
    global_txn_patience: Duration = timedelta(seconds=60)
    fold: Annotated[Literal["auto", "every_cut"] | timedelta, PlainValidator(_fold)] = "auto"
    min_cut_interval: Duration = timedelta(milliseconds=250)
    keep: Duration = timedelta(days=7)
    durability: Literal["safe", "fast"] = "safe"
    bad_messages: Literal["stop", "quarantine"] = "stop"

    _file: str = PrivateAttr("configuration")
    _written: dict[str, Written] = PrivateAttr(default_factory=dict)

    @property
    def file(self) -> str:
        """The configuration file, as the user wrote its path."""
        return self._file

    @property
    def pasted(self) -> str:
        """The same as a shell takes it, for the commands that errors tell."""
        return shlex.quote(self._file)

    def place(self, *keys: str) -> str:
        """Where something stands, as errors name it: ``conf/demo.yaml: views.orders.sql``."""
        return f"{self._file}: {'.'.join(keys)}" if keys else self._file

    def in_sql(self, view: str, problem: Problem) -> Problem:
        """A problem of a view's SQL with the line and column of the file: ``conf/demo.yaml:12:8: views.orders.sql``."""
        if problem.at is None or (written := self._written.get(view)) is None:
            return replace(problem, place=f"{self._file}: {problem.place}")
        line, column = written.place(problem.at.line, problem.at.column)
        return replace(problem, place=f"{self._file}:{line}:{column}: {problem.place}", at=None)

    def rejected_topic(self, source: str) -> str:
        """Where ``bad_messages: quarantine`` moves what cannot be understood."""
        return f"{source}.rejected"


def load_config(path: str | Path) -> Config:
    """The configuration in a file, or a ConfigError that names all of its problems."""
    file = str(path)
    directory = Path(file).absolute().parent
    tree, written, problems = read_tree(file)
    try:
        config = Config.model_validate(tree, context={"directory": directory})
        problems += kafka_problems(config.kafka, file)
    except ValidationError as e:
        problems += problems_of(e, file, partial(_known_keys, tree))
    problems += [*_shared_topics(tree, file), *_shared_databases(tree, file, directory), *_foreign_options(tree, file)]
    problems += group_problems(tree, file)
    if problems:
        raise ConfigError(problems)
    config._file, config._written = file, written
    remedies.know(
        file,
        {name: section.topic for name, section in config.sources.items()},
        {name: section.sql for name, section in config.views.items()},
    )
    return config


def _known_keys(tree: dict[str, Any], keys: Keys) -> Iterable[str]:
    """The keys that the mapping at a place of the file may have."""
    match keys:
        case ():
            return Config.model_fields
        case ("kafka",):
            return KafkaConfig.model_fields
        case ("sources", name):
            fields = KINDS[tree["sources"][name]["kind"]].model_fields
            return [field.alias or key for key, field in fields.items()]
        case ("groups", _):
            return GroupConfig.model_fields
        case ("views", name):
            algorithm = _algorithm_of(tree["views"][name])
            return ViewConfig.model_fields.keys() - ANY_OPTION | OPTIONS.get(algorithm, frozenset())
    return ()


def _sections(tree: dict[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    """The named sections under a key, as far as they are mappings at all."""
    sections = tree.get(key)
    return [(n, s) for n, s in sections.items() if isinstance(s, dict)] if isinstance(sections, dict) else []


def _algorithm_of(section: dict[str, Any]) -> str:
    return str(section.get("algorithm", "sweep"))


def _foreign_options(tree: dict[str, Any], file: str) -> list[Problem]:
    """Options of other algorithms than the one that a view names."""
    problems = []
    for name, section in _sections(tree, "views"):
        algorithm = _algorithm_of(section)
        for option in sorted(section.keys() & ANY_OPTION - OPTIONS.get(algorithm, ANY_OPTION)):
            owners = " or ".join(owner for owner, options in OPTIONS.items() if option in options)
            place = f"{file}: views.{name}.{option}"
            problems.append(Problem(place, f"algorithm {algorithm} has no such option", f"it belongs to {owners}"))
    return problems


def _shared_topics(tree: dict[str, Any], file: str) -> list[Problem]:
    """Topics that two things would write to; Kafka also takes '.' and '_' for the same in a topic's name."""
    sources, views = _sections(tree, "sources"), _sections(tree, "views")
    uses = [
        *((s.get("topic") or f"{name}.updates", f"sources.{name}.topic") for name, s in sources),
        *((f"{name}.rejected", f"sources.{name}") for name, _ in sources),
        *((v.get("topic") or f"view.{name}", f"views.{name}.topic") for name, v in views),
    ]
    keyed = [(str(topic).replace(".", "_"), place, f"topic {topic}") for topic, place in uses]
    return _shared(keyed, file, "give each its own topic")


def _shared_databases(tree: dict[str, Any], file: str, directory: Path) -> list[Problem]:
    """Databases and slots that two sources name: their captures would take each other's changes."""
    paths = {name: s["path"] for name, s in _sections(tree, "sources") if isinstance(s.get("path"), str)}
    uses = []
    for name, path in paths.items():
        with suppress(ValueError):  # told of elsewhere
            uses.append((str(located(directory, path)), f"sources.{name}.path", f"database {path}"))
    return [*_shared(uses, file, "use one source for it"), *_shared_slots(tree, file), *_long_slots(tree, file)]


def _long_slots(tree: dict[str, Any], file: str) -> list[Problem]:
    """Slots and publications whose default name is longer than PostgreSQL's names."""
    return [
        Problem(f"{file}: sources.{name}.{key}", f"viewkeeper_{name.lower()} is too long for PostgreSQL", f"set {key}")
        for name, section in _sections(tree, "sources")
        for key in ("slot", "publication")
        if section.get("kind") == "postgres" and not section.get(key)
        if len(f"viewkeeper_{name}") > LONGEST_IDENTIFIER
    ]


def _shared_slots(tree: dict[str, Any], file: str) -> list[Problem]:
    """Replication slots that two sources of one server name."""
    slots = [
        (server(section["url"]), section.get("slot") or f"viewkeeper_{name.lower()}", name)
        for name, section in _sections(tree, "sources")
        if isinstance(section.get("url"), str)
    ]
    uses = [(f"{server} {slot}", f"sources.{name}.slot", f"slot {slot}") for server, slot, name in slots if server]
    return _shared(uses, file, "give each source its own slot")


def _shared(uses: Iterable[tuple[str, str, str]], file: str, remedy: str) -> list[Problem]:
    first: dict[str, str] = {}
    problems = []
    for key, place, what in uses:
        if key in first:
            problems.append(Problem(f"{file}: {place}", f"{what} is already used by {first[key]}", remedy))
        else:
            first[key] = place
    return problems
