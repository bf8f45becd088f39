"""The local broker: it starts, it keeps what it was sent, and it never outlives whoever started it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conftest import ODD_FOLDER, SharedBroker, eventually
from tests.e2e.sockets import family, reachable
from viewkeeper.errors import KafkaError, UsageError
from viewkeeper.local.broker import Broker, free_ports

pytestmark = pytest.mark.e2e


@contextmanager
def foreground(directory: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """``viewkeeper broker``, ready; killed at the end if the test left it."""
    place = ["--dir", str(directory), "--port", str(port)]
    command = [sys.executable, "-m", "viewkeeper.cli", "broker", *place]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert f"ready at 127.0.0.1:{port}" in line, child.communicate()[1]
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_broker_keeps_its_messages_over_a_restart_on_another_port(tmp_path: Path) -> None:
    with Broker(tmp_path / ODD_FOLDER) as first:
        SharedBroker(first.bootstrap).create("kept")
        SharedBroker(first.bootstrap).send("kept", "one", "two")
    assert [folder.name for folder in tmp_path.iterdir()] == [ODD_FOLDER]
    assert list((tmp_path / ODD_FOLDER / "data").glob("kept-0/*.log"))
    with Broker(tmp_path / ODD_FOLDER) as second:
        shared = SharedBroker(second.bootstrap)
        assert [m.value() for m in shared.messages("kept")] == [b"one", b"two"]
        assert first.port != second.port


def test_a_broker_that_was_killed_starts_again_with_what_it_had(tmp_path: Path) -> None:
    broker = Broker(tmp_path).start()
    SharedBroker(broker.bootstrap).create("kept")
    SharedBroker(broker.bootstrap).send("kept", "one")
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGKILL)
    broker.stop()
    with Broker(tmp_path) as again:
        assert [m.value() for m in SharedBroker(again.bootstrap).messages("kept")] == [b"one"]


def test_transactions_work_on_one_node(broker: SharedBroker) -> None:
    topic = broker.new_topic("transactions")
    producer = Producer(broker.client(transactional_id=topic))
    producer.init_transactions(30)
    for value, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        end()
    assert [m.value() for m in broker.messages(topic)] == [b"committed"]


def test_a_topic_is_never_created_by_accident(broker: SharedBroker) -> None:
    producer = Producer(broker.client(message_timeout_ms=1000))
    outcome: list[object] = []
    producer.produce("misspelt", b"x", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(10)
    assert outcome[0] is not None


@pytest.mark.parametrize("how", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM), (signal.SIGHUP, signal.SIGINT)])
def test_the_command_ends_cleanly_by_signals_to_its_process_group(
    tmp_path: Path, how: tuple[signal.Signals, ...]
) -> None:
    port = free_ports()
    with foreground(tmp_path, port) as child:
        for number in how:
            os.killpg(child.pid, number)
        assert child.wait(30) == 0
        assert child.communicate()[1] == ""
    assert not listening(port)


def test_a_killed_command_leaves_no_broker_behind(tmp_path: Path) -> None:
    port = free_ports()
    with foreground(tmp_path, port) as child:
        assert listening(port)
        assert reachable(family(child.pid)) == set(), "it is for this machine alone"
        child.kill()
        child.wait()
        eventually(lambda: not listening(port), what="the broker is gone")


def test_a_broker_that_dies_is_reported(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        with pytest.raises(KafkaError, match=r"the broker ended.*; see .*broker\.log"):
            broker.wait()


def test_a_port_in_use_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} is in use"):
            Broker(tmp_path, port).start()


def test_a_folder_in_use_by_another_broker_is_refused(tmp_path: Path) -> None:
    with Broker(tmp_path) as first:
        with pytest.raises(UsageError, match="another broker runs in this folder"):
            Broker(tmp_path).start()
        SharedBroker(first.bootstrap).create("undisturbed")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        Broker(tmp_path / "file" / "below").start()


def test_a_missing_java_is_one_sentence_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="no Java in JAVA_HOME; install it: sudo apt-get install"):
        Broker(tmp_path / "broker").start()


def test_missing_jars_are_one_sentence_with_the_command_that_gets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEWKEEPER_JARS", str(tmp_path))
    with pytest.raises(UsageError, match="run: make setup"):
        Broker(tmp_path / "broker").start()
