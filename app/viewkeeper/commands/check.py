"""``viewkeeper check``: is everything there that the configuration speaks of? Changes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka.admin import ClusterMetadata

from viewkeeper.algebra.types import Catalog, Relation
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.registry import SWEEP
from viewkeeper.capture.debezium_connector import Login
from viewkeeper.capture.postgres_findings import Finding
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.commands.check_sql import scripts
from viewkeeper.config import Config, load_config
from viewkeeper.config_groups import ALL
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.consistency.levels import Level
from viewkeeper.counts import some
from viewkeeper.errors import KafkaError, Problem, SourceError, UserError, ViewkeeperError
from viewkeeper.integrator.groups import (
    Sharing,
    SourcesOf,
    shared_sources,
    sources_of_group,
    split,
    split_transactions,
)
from viewkeeper.job.assembly import keeping_of, make_capture, make_source, parse_views, used_by
from viewkeeper.job.named_relations import relations_named, sources_named
from viewkeeper.managers.keeping import Keeping, weakest
from viewkeeper.warehouse.brokers import metadata
from viewkeeper.warehouse.layout import Layout

BROKER_SECONDS = 5.0
"""What a broker may take to answer."""


def run(args: argparse.Namespace) -> int:
    """Prints what is fine; raises everything that is not, together."""
    config = load_config(args.conf)
    report = _Report(config, silent=args.sql)
    report.say("ok", "configuration", f"{_count(config.sources, 'source')}, {_count(config.views, 'view')}")
    report.warehouse()
    report.look()
    report.views()
    report.groups()
    report.captures()
    if args.sql:
        print(*scripts(config, report.found), sep="\n", flush=True)
    report.finish()
    return 0


class _Report:
    """Looks at sources and Kafka side by side, because each may take a while to give up; nobody is waited for."""

    def __init__(self, config: Config, silent: bool = False):
        self.config = config
        self.silent = silent
        self.found: dict[str, list[Finding]] = {}  # by PostgreSQL source
        self.catalog: Catalog = {}
        self.described: set[str] = set()
        self.errors: list[ViewkeeperError] = []
        self.parsed: dict[str, View] = {}

    def warehouse(self) -> None:
        with _Collecting(self.errors):
            Layout(self.config.warehouse, ALL).require_writable()

    def look(self) -> None:
        config = self.config
        with ThreadPoolExecutor(len(config.sources) + 1) as pool:
            described = {name: pool.submit(make_source(config, name).describe) for name in config.sources}
            topics = pool.submit(metadata, config.kafka.client(), BROKER_SECONDS)
        for name, looked in described.items():
            with _Collecting(self.errors):
                found = looked.result()
                self.described.add(name)
                self.catalog |= {(name, relation): is_ for relation, is_ in found.items()}
                self.say("ok", f"source {name}", f"{config.sources[name].kind}, {_count(found, 'relation')}")
        with _Collecting(self.errors):
            self.say("ok", f"kafka {config.kafka.bootstrap}", _topics(config, topics.result()))

    def views(self) -> None:
        """Parses each view by itself, if all of its sources could be looked at."""
        for name, section in self.config.views.items():
            if sources_named(section.sql, self.config.sources) <= self.described:
                with _Collecting(self.errors):
                    self._view(name)

    def _view(self, name: str) -> None:
        view = parse_views(self.config, self.catalog, [name])[name]
        self.parsed[name] = view
        keeping = keeping_of(self.config.views[name])
        self.say("ok", f"view {name}", _about(view) + _kept_by(keeping))
        if keeping.level < Level.STRONG:
            self.say("warning", f"view {name}", _weak(keeping))
        for warning in unindexed(view, self.catalog):
            self.say("warning", f"view {name}", warning)

    def groups(self) -> None:
        """How the views are split, if all of them were understood, and what the split does not keep together."""
        if len(self.parsed) < len(self.config.views):
            return
        sources_of = {name: view.sources for name, view in self.parsed.items()}
        with _Collecting(self.errors):
            groups = split(self.config, sources_of)
            for name, views in groups.items():
                level = weakest({view: keeping_of(self.config.views[view]) for view in views})
                self.say("ok", f"group {name}", _members(views, sources_of, level))
            for sharing in shared_sources(self.config, groups, sources_of):
                self.say("warning", _and("group", sharing.groups), _shared(sharing))
            for sharing in split_transactions(self.config, groups, sources_of):
                self.say("warning", _and("group", sharing.groups), _torn(sharing))

    def captures(self) -> None:
        """What each database says about being captured, as far as it answered before."""
        for name in sorted(self.described):
            capture = make_capture(self.config, name)
            if isinstance(capture, PostgresCapture):
                with _Collecting(self.errors):
                    self._findings(capture)
            elif isinstance(capture, SqliteCapture):
                with _Collecting(self.errors):
                    self._unfit(capture)
        for name, section in self.config.sources.items():
            if isinstance(section, PostgresConfig):
                with _Collecting(self.errors):
                    Login.parse(self.config.place("sources", name, "url"), section.url)

    def _unfit(self, capture: SqliteCapture) -> None:
        used = used_by(self.parsed, capture.name)
        for warning in capture.warnings(used):
            self.say("warning", capture.place, warning)
        if problems := capture.problems(used):
            raise SourceError(problems)

    def _findings(self, capture: PostgresCapture) -> None:
        found = self.found[capture.name] = capture.findings(self._used(capture.name))
        for finding in found:
            if finding.verdict != "problem":
                self.say(finding.verdict, capture.place, str(finding))
        problems = [finding.problem(capture.place) for finding in found if finding.verdict == "problem"]
        if problems:
            raise SourceError(problems)

    def _used(self, source: str) -> dict[str, list[str]]:
        """What views use of a source; of those that were not understood, the relations that they name and may use."""
        used = used_by(self.parsed, source)
        fit = [relation for (s, relation), is_ in self.catalog.items() if s == source and not is_.refused]
        for name, section in self.config.views.items():
            if name not in self.parsed:
                named = {r.lower() for s, r in relations_named(section.sql, self.config.sources) if s == source}
                used |= {r: [] for r in fit if r.lower() in named and r not in used}
        return used

    def say(self, verdict: str, about: str, what: str) -> None:
        if not self.silent:
            print(f"{verdict:8}{about}: {what}", flush=True)

    def finish(self) -> None:
        """Raises all that was found; what the user can change comes before what the world must."""
        if not self.errors:
            return
        self.errors.sort(key=lambda e: isinstance(e, UserError))
        problems: list[Problem] = [p for error in self.errors for p in error.problems]
        raise type(self.errors[-1])(problems)


class _Collecting:
    """Keeps our own errors for later, so that one does not hide the next."""

    def __init__(self, errors: list[ViewkeeperError]):
        self.errors = errors

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if isinstance(error, ViewkeeperError):
            self.errors.append(error)
            return True
        return False


def unindexed(view: View, catalog: Catalog) -> Iterator[str]:
    """A sentence for each question that would make its source read a whole relation, with the remedy."""
    told: set[tuple[str, str, tuple[str, ...]]] = set()
    for start in range(len(view.occurrences)):
        for hop in view.hops(start):
            o = hop.occurrence
            relation = catalog[o.source, o.relation]
            if _indexed(relation, hop.key) or (o.source, o.relation, hop.key) in told:
                continue
            told.add((o.source, o.relation, hop.key))
            index = f"CREATE INDEX {o.relation}_{hop.key[0]} ON {o.relation} ({', '.join(hop.key)})"
            yield (
                f"{o.source}.{o.relation} has no index that starts with {' or '.join(hop.key)}, "
                f"so every batch reads it whole; {index}"
            )


def _indexed(relation: Relation, key: tuple[str, ...]) -> bool:
    return not relation.indexed.isdisjoint(key)


def _kept_by(keeping: Keeping) -> str:
    if keeping.algorithm == SWEEP:
        return ""
    return f", kept by {keeping.algorithm} ({str(keeping.level) if keeping.level else 'promises nothing'})"


def _weak(keeping: Keeping) -> str:
    """What a reader of the view must know; t_strobe and its like promise more, for the same price."""
    if keeping.level == Level.INCONSISTENT:
        return f"{keeping.algorithm} compensates nothing, so changes that meet may leave wrong rows; choose another"
    return f"{keeping.algorithm} may show the middle of a transaction; choose one for transactions of many changes"


def _members(views: Sequence[str], sources_of: SourcesOf, level: Level) -> str:
    sources = sorted(sources_of_group(views, sources_of))
    promise = f"level {level}" if level else "promises nothing"
    return f"{_and('view', views)} ({_and('source', sources)}), {promise}"


def _shared(sharing: Sharing) -> str:
    return f"they share {_and('source', sharing.sources)}, and promise nothing to each other; groups: auto joins them"


def _torn(sharing: Sharing) -> str:
    sources = ", ".join(sharing.sources)
    return f"of a transaction over {sources} (global_txn) each shows its own parts by itself; groups: auto joins them"


def _topics(config: Config, cluster: ClusterMetadata) -> str:
    """How many of the topics exist; one of several partitions has no order, and so cannot be used."""
    topics = [*(s.topic for s in config.sources.values()), *(v.topic for v in config.views.values())]
    there = [topic for topic in topics if topic in cluster.topics]
    split = [topic for topic in there if len(cluster.topics[topic].partitions) != 1]
    if split:
        what = "has more than one partition, so its messages have no order"
        raise KafkaError([Problem(f"topic {t}", what, "use a topic of one partition") for t in split])
    missing = len(topics) - len(there)
    return f"{_count(there, 'topic')} there" + (f", {missing} to be created by init" if missing else "")


def _about(view: View) -> str:
    relations = ", ".join(f"{o.source}.{o.relation} {o.alias}" for o in view.occurrences)
    return f"{_count(view.outputs, 'column')} from {relations}"


def _and(noun: str, names: Sequence[str]) -> str:
    """``views a, b``"""
    return f"{noun}{'' if len(names) == 1 else 's'} {', '.join(names)}"


def _count(things: Sized, noun: str) -> str:
    return some(len(things), noun)
