"""A source that is closed while threads use it: what they use is closed when they are done, not under them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import MakeDatabase
from tests.e2e.pg_world import when
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import SourceUnreachable
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.managers.sources.postgres_session import Reader
from viewkeeper.messages import Ask

pytestmark = pytest.mark.e2e

ROWS = 20_000
WHOLE = Ask("shop", "wide", ("id", "text"), (), None)
TABLE = (
    "CREATE TABLE wide (id int PRIMARY KEY, text text)",
    f"INSERT INTO wide SELECT i, repeat('x', 100) FROM generate_series(1, {ROWS}) i",
)
OPEN = "SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'viewkeeper' AND datname = '{}'"


def _in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)


def asked_and_closed(config: PostgresConfig, times: int) -> list[int]:
    """How many rows the answers had that three threads got while the source was closed so many times."""
    source, answers, over = PostgresSource("shop", config), list[int](), threading.Event()
    source.watch({"wide": ["id", "text"]})

    def ask() -> None:
        while not over.is_set():
            try:
                snapshot = source.freeze(None)
                try:
                    answers.append(len(source.ask(WHOLE, snapshot).rows))
                finally:
                    source.release(snapshot)
            except SourceUnreachable:
                pass  # its snapshot was let go before it was asked

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for closed in range(times):
        before = len(answers)
        eventually(lambda before=before: len(answers) > before or not any(t.is_alive() for t in threads), 60)  # type: ignore[misc]
        threading.Event().wait(closed % 7 * 0.003)  # at another moment of an answer each time
        source.close()
    over.set()
    for thread in threads:
        thread.join(60)
    source.close()
    return answers


def test_a_source_that_is_closed_while_threads_ask_it_neither_crashes_nor_cuts_answers_short(
    new_database: MakeDatabase,
) -> None:
    made = new_database(*TABLE)
    with ProcessPoolExecutor(1, get_context("spawn")) as other:  # a crash would end it
        answers = other.submit(asked_and_closed, made.config(topic="t"), 60).result(300)
    assert len(answers) >= 60 and set(answers) == {ROWS}


def test_what_a_thread_uses_is_closed_when_it_is_done(new_database: MakeDatabase) -> None:
    """And nothing is left open behind it."""
    made = new_database(*TABLE)
    source, found = PostgresSource("shop", made.config(topic="t")), list[int]()
    source.watch({"wide": ["id", "text"]})
    with closing(source):
        snapshot = source.freeze(None)
        work = lambda: found.append(len(source.ask(WHOLE, snapshot).rows))  # noqa: E731
        with when(Reader, "begin", lambda: _in_a_thread(source.close), after=True):
            _in_a_thread(work)
        assert found == [ROWS]
        count = lambda: made.execute(OPEN.format(made.name))[0][0]  # noqa: E731
        eventually(lambda: count() == 0, 30, "nothing is open")
        assert len(source.ask(WHOLE, source.freeze(None)).rows) == ROWS, "a later use opens it again"
