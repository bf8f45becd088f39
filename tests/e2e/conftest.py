"""What the end-to-end tests share: installations, whose logs are shown when a test fails, and one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SharedBroker
from tests.e2e.harness import Installation, Tables

Install = Callable[..., Installation]


@pytest.fixture
def install(tmp_path: Path, broker: SharedBroker, request: pytest.FixtureRequest) -> Iterator[Install]:
    """Makes installations; their processes end with the test."""
    made: list[Installation] = []
    request.node.installations = made

    def make(tables: Tables, views: dict[str, str], **settings: Any) -> Installation:
        folder = tmp_path / f"i{len(made)}"
        folder.mkdir()
        made.append(Installation(folder, broker, tables, dict(views), settings))
        return made[-1]

    yield make
    for installation in made:
        installation.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for installation in getattr(item, "installations", ()):
            report.sections += list(installation.logs())
    return report
