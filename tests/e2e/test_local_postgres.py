"""The local PostgreSQL server: it starts, it keeps what it has, and it never outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.conftest import eventually
from tests.e2e.conftest import MakeDatabase
from tests.e2e.postgres import VERSIONS, Servers
from viewkeeper.errors import SourceError, UsageError
from viewkeeper.local.postgres import PostgresServer, binaries_of

pytestmark = pytest.mark.e2e

CHILD = """
import sys
from pathlib import Path
from viewkeeper.local.postgres import PostgresServer
server = PostgresServer(Path(sys.argv[1])).start()
print(server.pid, server.url(), server.data.parent, flush=True)
sys.stdin.read()
"""


def refuses(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=5).close()
    except psycopg.OperationalError:
        return True
    return False


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_here_writes_a_logical_log(new_database: MakeDatabase, version: int) -> None:
    made = new_database("CREATE TABLE t (a int)", version=version)
    assert made.execute("SELECT current_setting('wal_level')") == [("logical",)]
    assert made.execute("SELECT current_setting('server_version_num')::int / 10000") == [(version,)]


def test_a_killed_server_starts_again_at_the_same_address_with_what_was_committed(postgres: Servers) -> None:
    server = postgres.own()
    url = server.url()
    for n, how in enumerate(("kill", "immediate", "fast")):
        server.execute("CREATE TABLE IF NOT EXISTS t (a int)", f"INSERT INTO t VALUES ({n})")
        server.restart(how)  # type: ignore[arg-type]
        assert server.execute("SELECT count(*) FROM t") == [(n + 1,)]
    assert server.url() == url


def test_a_server_dies_with_its_starter_and_hears_no_ctrl_c(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        pid, url, _ = child.stdout.readline().split()
        assert os.getpgid(int(pid)) != os.getpgid(child.pid)
        assert not refuses(url)
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        eventually(lambda: refuses(url), 30, "the server is gone")
    finally:
        child.kill()
        child.communicate()


def test_a_server_with_a_password_takes_no_other(tmp_path: Path) -> None:
    with PostgresServer(tmp_path, password="it's:s€cret/@") as server:
        assert server.execute("SELECT 1") == [(1,)]
        assert refuses(server.url(password="wrong"))
        assert refuses(f"postgresql://postgres@127.0.0.1:{server.port}/postgres")


def test_a_setting_that_the_server_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"did not start \(.*contains errors\); see .*postgres\.log"):
        PostgresServer(tmp_path, settings={"no_such": "1"}).start()


def test_a_version_that_is_not_here_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match=r"there is no PostgreSQL 9 .*; install one"):
        binaries_of(9)
