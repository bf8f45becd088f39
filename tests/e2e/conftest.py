"""What the end-to-end tests share: installations, whose logs are shown when a test fails, and one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SharedBroker
from tests.e2e.harness import Installation, Tables
from tests.e2e.pg_shop import CRM, SHOP, TAGGED, VIEWS
from tests.e2e.pg_world import World, Worlds
from tests.e2e.postgres import USUAL, Captured, Database, Debezium, Servers, database

Install = Callable[..., Installation]
MakeDatabase = Callable[..., Database]


@pytest.fixture
def install(tmp_path: Path, broker: SharedBroker, request: pytest.FixtureRequest) -> Iterator[Install]:
    """Makes installations; their processes end with the test."""
    made: list[Installation] = []
    request.node.installations = made

    def make(
        tables: Tables,
        views: dict[str, str],
        databases: Mapping[str, Database] | None = None,
        at: SharedBroker = broker,
        within: str = "",
        **settings: Any,
    ) -> Installation:
        folder = tmp_path / within / f"i{len(made)}"
        folder.mkdir(parents=True)
        made.append(Installation(folder, at, tables, dict(views), settings, databases=databases or {}))
        return made[-1]

    yield make
    for installation in made:
        installation.end()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """PostgreSQL servers; they end with the test run."""
    servers = Servers(tmp_path_factory.mktemp)
    yield servers
    servers.stop()


@pytest.fixture
def new_database(postgres: Servers) -> Iterator[MakeDatabase]:
    """Makes fresh databases: ``new_database("CREATE TABLE …", …, version=18)``; they are gone after the test."""
    with ExitStack() as made:

        def make(*statements: str, name: str = "t", version: int = USUAL) -> Database:
            return made.enter_context(database(postgres.shared(version), statements, name))

        yield make


@pytest.fixture
def debezium(tmp_path: Path, broker: SharedBroker) -> Iterator[Callable[..., Debezium]]:
    """Starts real Debezium for sources: ``debezium(Captured("shop", database, topic, {"orders": ["id"]}), …)``."""
    started: list[Debezium] = []

    def start(*sources: Captured) -> Debezium:
        started.append(Debezium(tmp_path / f"debezium{len(started)}", broker, *sources).start())
        return started[-1]

    yield start
    for running in started:
        running.stop()


@pytest.fixture(scope="session")
def shared_debezium(tmp_path_factory: pytest.TempPathFactory, broker: SharedBroker) -> Iterator[Debezium]:
    """One Kafka Connect for tests that ``add`` their sources to it."""
    running = Debezium(tmp_path_factory.mktemp("debezium"), broker).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def shared_world(
    postgres: Servers, tmp_path_factory: pytest.TempPathFactory, broker: SharedBroker, shared_debezium: Debezium
) -> Iterator[World]:
    """The shop's databases, captured once for all tests that write to them and leave their tables as they were."""
    server = postgres.own(max_prepared_transactions="10")
    worlds = Worlds(tmp_path_factory.mktemp("worlds"), broker, shared_debezium)
    with database(server, SHOP, "shop") as shop, database(server, CRM, "crm") as crm:
        world = worlds({"shop": shop, "crm": crm}, {**VIEWS, "tagged": TAGGED}, statement_timeout="3s")
        yield world
        worlds.end()  # while the databases are still there


@pytest.fixture
def world(shared_world: World, request: pytest.FixtureRequest) -> World:
    """The shop with views of it, as the last test has left them; loaded anew where one has failed."""
    failed = request.session.testsfailed
    if shared_world.failures != failed:
        shared_world.views = dict(VIEWS)
        shared_world.open(*(VIEWS if shared_world.failures is not None else ()))
        shared_world.failures = failed
    return shared_world


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for installation in getattr(item, "installations", ()):
            report.sections += list(installation.logs())
    return report
