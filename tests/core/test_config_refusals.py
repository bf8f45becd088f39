"""Absurd configurations: exit 2 at once, one line each, in words that say what to change."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.core.test_config import GOOD, problems, with_view, written
from viewkeeper import cli

SECONDS = 5.0
"""What a refusal may take: no source and no broker is asked."""


def with_source(settings: str) -> str:
    return GOOD.replace("{kind: sqlite, path: ./shop.db}", f"{{{settings}}}")


def with_url(url: str) -> str:
    return with_source(f"kind: postgres, url: '{url}'")


def with_kafka(options: str) -> str:
    return GOOD.replace('9092"}', f'9092", options: {{{options}}}}}')


ALIASES = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(f'*{a}' for _ in range(10))}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)

REFUSED = {
    "a NUL in a path": (with_source(r'kind: sqlite, path: "a\0b"'), "sources.shop.path: has a NUL"),
    "a NUL in SQL": (with_view(r'topic: "a\0"'), "views.orders.topic: has a NUL"),
    "half of a letter": (with_source(r'kind: sqlite, path: "a\ud800b"'), "sources.shop.path: has a NUL or half"),
    "the home of nobody": (with_source("kind: sqlite, path: ~nobody-here/x.db"), "sources.shop.path: leads nowhere"),
    "a warehouse at nobody's": (GOOD.replace("./warehouse", "~nobody-here/w"), "warehouse: leads nowhere"),
    "a path without end": (GOOD.replace("./warehouse", "x/" * 3000), "warehouse: is longer than a path may be"),
    "a folder of 300 letters": (GOOD.replace("./warehouse", "x" * 300), "warehouse: is longer than a path may be"),
    "a folder as database": (with_source("kind: sqlite, path: ."), "is a folder; name the database's file"),
    "a file as warehouse": (GOOD.replace("./warehouse", "conf.yaml"), "conf.yaml is a file; name a folder"),
    "a warehouse below a file": (GOOD.replace("./warehouse", "conf.yaml/w"), "conf.yaml is a file, so nothing"),
    "a database below a file": (with_source("kind: sqlite, path: conf.yaml/x.db"), "is a file, so nothing can be"),
    "a view of 250 letters": (GOOD.replace("orders:", f"{'v' * 250}:"), "is 250 letters long; use at most 100"),
    "a source of 250 letters": (GOOD.replace("shop:", f"{'s' * 250}:"), "is 250 letters long; use at most 100"),
    "a group of 250 letters": (GOOD + f"groups: {{{'g' * 250}: [orders]}}\n", "is 250 letters long; use at most 100"),
    "a topic of Kafka's own": (with_view("topic: __consumer_offsets"), "is one of Kafka's own topics"),
    "a topic of 250 letters": (with_view(f"topic: {'t' * 250}"), "must be a Kafka topic name"),
    "a slot that gets too long": (
        with_url("postgresql://u@h/d").replace("shop:", f"{'s' * 60}:"),
        f"slot: viewkeeper_{'s' * 60} is too long for PostgreSQL; set slot",
    ),
    "a publication too long": (
        with_source(f"kind: postgres, url: 'postgresql://u@h/d', publication: {'p' * 64}"),
        "sources.shop.publication: is longer than the 63 bytes",
    ),
    "nesting": ("a: " + "[" * 3000 + "]" * 3000, "it is nested deeper than any configuration"),
    "nesting of mappings": ("{a: " * 3000 + "1" + "}" * 3000, "it is nested deeper than any configuration"),
    "aliases of aliases": (ALIASES, "more than 100000 values"),
    "10 MB": ("# " + "x" * 10_000_000, "is larger than any configuration"),
    "an unknown Kafka option": (with_kafka("sasl.usernam: x"), 'No such configuration property: "sasl.usernam"'),
    "a Kafka option's value": (with_kafka("security.protocol: nope"), 'Invalid value "nope" for configuration'),
    "a Kafka number": (with_kafka("socket.timeout.ms: soon"), "socket.timeout.ms"),
    "a callback": (with_kafka("error_cb: x"), "error_cb"),
    "a certificate that is not there": (
        with_kafka("security.protocol: ssl, ssl.ca.location: /nowhere.pem"),
        "ssl.ca.location failed",
    ),
    "the bootstrap by its alias": (with_kafka("metadata.broker.list: 'a:1'"), "set kafka.bootstrap"),
    "both names of the mechanism": (
        with_kafka("sasl.mechanism: PLAIN, sasl.mechanisms: PLAIN"),
        "options sasl.mechanisms and sasl.mechanism are one and the same",
    ),
    "sslmode": (with_url("postgresql://u:p@h/d?sslmode=nope"), 'sources.shop.url: invalid sslmode value: "nope"'),
    "a port": (with_url("postgresql://u:p@h:99999/d"), 'sources.shop.url: invalid port number: "99999"'),
    "a timeout": (with_url("postgresql://u@h/d?connect_timeout=soon"), "connect_timeout must be a whole number"),
    "a session attribute": (with_url("postgresql://u@h/d?target_session_attrs=x"), "invalid target_session_attrs"),
    "an option of libpq": (with_url("postgresql://u@h/d?nope=1"), "sources.shop.url: must be a URL"),
    "a timeout of a century": (
        with_source("kind: postgres, url: 'postgresql://u@h/d', statement_timeout: 36500d"),
        "statement_timeout: is longer than PostgreSQL can count",
    ),
    "no connections": (
        with_source("kind: postgres, url: 'postgresql://u@h/d', max_connections: -1"),
        "max_connections: must be a whole number from 3",
    ),
    "connections without end": (
        with_source("kind: postgres, url: 'postgresql://u@h/d', max_connections: 99999999999"),
        "max_connections: must be a whole number from 3",
    ),
    "a huge number": (with_view(f"algorithm: nested_sweep, bound: {10**30}"), "bound: is too large"),
    "no number": (with_view("algorithm: nested_sweep, bound: .nan"), "bound: must be a whole number"),
    "infinity": (with_view("algorithm: refresh, every: .inf"), "every: must be a number of updates"),
    "a date": (GOOD + "keep: 2026-01-01\n", "keep: must be a duration"),
    "a date for text": (with_view("level: 2026-01-01"), "level: there is no level"),
    "a millennium": (GOOD + "keep: 999999d\n", "keep: is too long a duration"),
    "text that is binary": (GOOD + "keep: !!binary aGk=\n", "keep: must be a duration"),
}


@pytest.mark.parametrize("absurd", REFUSED)
def test_an_absurd_configuration_is_refused_at_once_in_one_line(absurd: str, tmp_path: Path) -> None:
    text, said = REFUSED[absurd]
    began = time.monotonic()
    found = problems(tmp_path, text)
    assert time.monotonic() - began < SECONDS
    assert any(said in line for line in found), found
    assert all("\n" not in line and len(line) < 500 for line in found)


def test_a_device_a_folder_and_a_file_of_nothing_are_refused_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, said in (
        ("/dev/null", "is empty"),
        ("/dev/zero", "is larger than any"),
        (str(tmp_path), "cannot be read"),
    ):
        assert cli.main(["check", file]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"viewkeeper: {file}: {said}")


def test_a_byte_order_mark_is_no_part_of_the_configuration(tmp_path: Path) -> None:
    from viewkeeper.config import load_config

    assert load_config(written(tmp_path, b"\xef\xbb\xbf" + GOOD.encode())).views


@pytest.mark.parametrize("command", ["check", "init", "run", "capture", "status"])
def test_every_command_refuses_before_it_asks_anybody(command: str, tmp_path: Path) -> None:
    file = written(tmp_path, with_kafka("sasl.usernam: x"))
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "viewkeeper.cli", command, str(file)],
        capture_output=True, text=True, timeout=60, env={**os.environ, "VIEWKEEPER_LOGS": str(tmp_path / "logs")},
    )  # fmt: skip
    assert time.monotonic() - began < 4 * SECONDS, "most of it is Python's start"
    assert ended.returncode == 2
    assert [line.startswith("viewkeeper: ") for line in ended.stderr.splitlines()] == [True], ended.stderr
