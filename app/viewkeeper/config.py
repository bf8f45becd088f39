"""The one configuration file: what it may say, and everything that is wrong with it at once.

kafka: {bootstrap: "127.0.0.1:9092"}
warehouse: ./warehouse
sources:
  shop: {kind: sqlite, path: ./shop.db}
views:
  orders: {sql: SELECT …}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
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

from viewkeeper.algorithms.registry import ALGORITHMS
from viewkeeper.config_groups import AskedLevel, GroupConfig, Groups, SpannedSources, group_problems
from viewkeeper.config_problems import nearest, problems_of
from viewkeeper.config_sources import KINDS, AnySource, PostgresConfig, server
from viewkeeper.config_text import Keys, read_tree
from viewkeeper.config_values import AbsolutePath, AtLeastOne, Duration, Name, Section, Topic, at_least_one, duration
from viewkeeper.errors import ConfigError, Problem

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]/]+):(\d{1,5})")

# What Viewkeeper decides for its own clients; another value would break a promise rather than tune anything.
_OWN_OPTIONS = {
    "bootstrap.servers",
    "group.id",
    "transactional.id",
    "isolation.level",
    "enable.auto.commit",
    "enable.idempotence",
    "auto.offset.reset",
    "acks",
}


def _fold(value: Any) -> Literal["auto", "every_cut"] | timedelta:
    if value in ("auto", "every_cut"):
        return value
    try:
        return duration(value)
    except ValueError:
        raise ValueError(f"must be auto, every_cut or a duration such as 30s, not {value!r}") from None


def _bootstrap(value: str) -> str:
    for address in value.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or not 0 < int(match[1]) < 65536:
            raise ValueError(f"must be host:port, or several with commas between, not {value!r}")
    return value


def _options(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of Kafka client options")
    for key, option in value.items():
        if isinstance(option, list | Mapping) or option is None:
            raise ValueError(f"option {key} must be text, a number, true or false")
        if key in _OWN_OPTIONS:
            remedy = "set kafka.bootstrap" if key == "bootstrap.servers" else "leave it out"
            raise ValueError(f"option {key} is not for the configuration to decide; {remedy}")
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items()}


class KafkaConfig(Section):
    """Where the broker is; ``options`` are named as librdkafka names them and may hold secrets."""

    bootstrap: Annotated[str, AfterValidator(_bootstrap)]
    options: Annotated[dict[str, str], PlainValidator(_options)] = Field(default_factory=dict, repr=False)

    def client(self, **settings: Any) -> dict[str, Any]:
        """The settings of a confluent-kafka client; ``group_id="g"`` sets ``group.id``."""
        own = {key.replace("_", "."): value for key, value in settings.items()}
        quiet = {"log_level": 0}  # what matters comes back as an error; the rest would go to the terminal
        return {**quiet, **self.options, "bootstrap.servers": self.bootstrap, **own}

    def spark(self) -> dict[str, str]:
        """The same options for Spark's Kafka source."""
        return {f"kafka.{key}": value for key, value in self.java().items()}

    def java(self) -> dict[str, str]:
        """The same options for a Java client, which names a few of them otherwise."""
        java = dict(self.options)
        user, password = java.pop("sasl.username", None), java.pop("sasl.password", None)
        if user is not None and password is not None:
            java["sasl.jaas.config"] = _jaas(java.get("sasl.mechanism", ""), user, password)
        if certificate := java.pop("ssl.ca.location", None):
            java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": certificate}
        return {**java, "bootstrap.servers": self.bootstrap}


def _jaas(mechanism: str, user: str, password: str) -> str:
    module = "scram.ScramLoginModule" if mechanism.upper().startswith("SCRAM") else "plain.PlainLoginModule"
    quoted = [value.replace("\\", "\\\\").replace('"', '\\"') for value in (user, password)]
    return f'org.apache.kafka.common.security.{module} required username="{quoted[0]}" password="{quoted[1]}";'


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
    warehouse: AbsolutePath
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
    bad_messages: Literal["stop", "quarantine"] = "stop"

    _file: str = PrivateAttr("configuration")

    @property
    def file(self) -> str:
        """The configuration file, as the user wrote its path."""
        return self._file

    def place(self, *keys: str) -> str:
        """Where something stands, as errors name it: ``conf/demo.yaml: views.orders.sql``."""
        return f"{self._file}: {'.'.join(keys)}" if keys else self._file

    def rejected_topic(self, source: str) -> str:
        """Where ``bad_messages: quarantine`` moves what cannot be understood."""
        return f"{source}.rejected"


def load_config(path: str | Path) -> Config:
    """The configuration in a file, or a ConfigError that names all of its problems."""
    file = str(path)
    directory = Path(file).absolute().parent
    tree, problems = read_tree(file)
    try:
        config = Config.model_validate(tree, context={"directory": directory})
    except ValidationError as e:
        problems += problems_of(e, file, partial(_known_keys, tree))
    problems += [*_shared_topics(tree, file), *_shared_databases(tree, file, directory), *_foreign_options(tree, file)]
    problems += group_problems(tree, file)
    if problems:
        raise ConfigError(problems)
    config._file = file
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
    uses = [
        (str(Path(directory, Path(path).expanduser()).resolve()), f"sources.{name}.path", f"database {path}")
        for name, path in paths.items()
    ]
    return [*_shared(uses, file, "use one source for it"), *_shared_slots(tree, file)]


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
