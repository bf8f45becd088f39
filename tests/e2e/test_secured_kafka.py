"""Everything through a broker that asks for a password, or for a certificate: our own clients, Spark's, Debezium's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import SharedBroker
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.debezium_shop import CRM, TABLES, VIEWS
from tests.e2e.secured_broker import PASSWORD, USER, SecuredBroker

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        assert isinstance(broker, SecuredBroker)
        yield broker


def login(mechanism: str) -> dict[str, str]:
    return {"sasl.mechanisms": mechanism, "sasl.username": USER, "sasl.password": "${KAFKA_PASSWORD}"}


def by_password(broker: SecuredBroker) -> dict[str, Any]:
    return {"bootstrap": broker.sasl, "options": {"security.protocol": "sasl_plaintext", **login("PLAIN")}}


def by_certificate_and_password(broker: SecuredBroker) -> dict[str, Any]:
    files = {"ssl.ca": "ca.pem", "ssl.certificate": "client.crt", "ssl.key": "client.key"}
    options = {f"{key}.location": str(broker.keys / name) for key, name in files.items()}
    return {"bootstrap": broker.tls, "options": {"security.protocol": "SASL_SSL", **options, **login("SCRAM-SHA-256")}}


def test_views_are_loaded_captured_kept_and_followed_through_a_secured_broker(
    secured: SecuredBroker, install: Install, new_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    shop, kafka = new_database(*TABLES, name="shop"), by_certificate_and_password(secured)
    world = install({"crm": CRM}, VIEWS, {"shop": shop}, at=SharedBroker(secured.bootstrap), kafka=kafka)
    with world.capturing():
        world.write("crm", "INSERT INTO customers VALUES (7, 'Ada')")
        world.write("shop", "INSERT INTO orders VALUES (1, 7, 'ä')", 'INSERT INTO "Order, Lines" VALUES (5, 1)')
        world.done("init")
        world.write("crm", "UPDATE customers SET name = 'Grace'")
        world.done("run", "--until-idle")
    assert world.done("read", "overview", "--format", "csv").out.splitlines()[1:] == ["1,5,Grace,1"]
    assert "+ id=1, line=5, name=Grace" in world.done("tail", "overview", "--no-follow", "--format", "text").out
    assert not any(PASSWORD in text for _, text in world.logs())


def test_a_wrong_password_is_said_by_every_command(
    secured: SecuredBroker, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "wrong")
    tables = {"crm": CRM}
    views = {"v": "SELECT c.id, c.name FROM crm.customers c"}
    world = install(tables, views, at=SharedBroker(secured.bootstrap), kafka=by_password(secured))
    for command in (["check"], ["init"], ["capture"], ["tail", "v", "--no-follow"]):
        ended = world.run(*command)
        assert ended.code == 3 and "correct sasl.* in kafka.options" in ended.errors[-1], (command, ended.err)
        assert "Traceback" not in ended.err
    world.broker.create(world.topics["crm"])
    assert "unknown: kafka" in (said := world.done("status").out) and "Authentication failed" in said
