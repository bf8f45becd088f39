"""Debezium's configuration: what a libpq URL means to a Java driver, and what of it may be shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from viewkeeper.capture.connect_rest import root_cause
from viewkeeper.capture.debezium_connector import PASSWORD, Login, connector, variable_of
from viewkeeper.commands.capture_attendance import _Debezium
from viewkeeper.config import KafkaConfig, load_config
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import ConfigError
from viewkeeper.queue.debezium_placeholder import placeholder_of


def section(url: str = "postgresql://clerk@db/shop", schema: str = "a b") -> PostgresConfig:
    given = {"kind": "postgres", "url": url, "slot": "s", "publication": "p", "topic": "shop.updates", "schema": schema}
    return PostgresConfig.model_validate(given)


def test_a_url_is_decoded_as_libpq_decodes_it() -> None:
    login = Login.parse(
        "url", "postgresql://cl%40rk:p%3A%2F%25w@[::1]:5433/sh%20op?sslmode=verify-full&sslrootcert=/ca"
    )
    assert (login.user, login.password, login.host, login.port, login.database) == (
        "cl@rk", "p:/%w", "::1", "5433", "sh op",
    )  # fmt: skip
    assert login.tls == {"database.sslmode": "verify-full", "database.sslrootcert": "/ca"}
    assert "p:/%w" not in repr(login)


def test_what_a_url_leaves_out_is_what_libpq_takes() -> None:
    login = Login.parse("url", "postgresql://clerk@/?hostaddr=10.0.0.1")
    assert (login.host, login.port, login.database, login.password) == ("10.0.0.1", "5432", "clerk", "")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("postgresql://clerk@one,two/shop", "several hosts"),
        ("postgresql://clerk@/shop?host=/var/run/postgresql", "names a socket"),
        ("postgresql://db/shop", "names no user"),
        ("postgresql://clerk@db/shop?service=mine", "names a service"),
        ("postgresql://clerk@db/shop?sslrootcert=system", "sslrootcert=system"),
        ("postgresql://clerk:s3cr3t%zz@db/shop", "cannot be read"),
    ],
)
def test_what_a_java_driver_cannot_do_is_refused_by_name(url: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        Login.parse("conf.yaml: sources.shop.url", url)
    assert "s3cr3t" not in str(refused.value)


def test_no_list_leaves_a_table_out_while_it_or_its_schema_has_another_name() -> None:
    config = connector(section(), "shop.updates", Login.parse("url", section().url), "").config
    assert not [option for option in config if re.fullmatch(r"(schema|table|column)\.(in|ex)clude\.list", option)]


def test_all_goes_into_the_one_topic_and_nothing_but_what_was_sent_moves_the_slot() -> None:
    config = connector(section(), "shop.updates", Login.parse("url", section().url), "").config
    assert config["transforms.one.replacement"] == "shop.updates"
    assert (config["heartbeat.interval.ms"], config["lsn.flush.mode"]) == ("0", "connector")
    assert config["errors.max.retries"] == "0", "to try again by itself would be to resume inside a transaction"
    assert config["value.converter.replace.null.with.default"] == "false"
    assert "database.password" not in config


def test_a_connector_names_its_own_placeholder_which_no_other_has() -> None:
    """Its messages tell the name, and so the reader of the topic knows the placeholder."""
    made = [connector(section(), "shop.updates", Login.parse("url", section().url), "").config for _ in range(2)]
    placeholders = [placeholder_of(config["topic.prefix"]).text for config in made]
    assert placeholders == [config["unavailable.value.placeholder"] for config in made]
    assert len({*placeholders, "__debezium_unavailable_value"}) == 3


@pytest.mark.parametrize(
    ("written", "value", "password", "variable"),
    [
        ("postgresql://clerk:${PW}@db/shop", "plain", "plain", "PW"),
        ("postgresql://db/shop?user=clerk&password=${PW}", "plain", "plain", "PW"),
        ("postgresql://clerk:${PW}@db/shop", "esc%21", "esc!", None),
        ("postgresql://clerk:x${PW}@db/shop", "plain", "xplain", None),
        ("${URL}", "plain", "plain", None),
        ("postgresql://clerk:plain@db/shop", "plain", "plain", None),
    ],
)
def test_a_variable_stands_for_a_password_only_if_it_is_exactly_that(
    written: str, value: str, password: str, variable: str | None
) -> None:
    assert variable_of(written, password, {"PW": value}) == variable


def test_a_java_trace_is_told_by_its_innermost_cause() -> None:
    trace = (
        "org.apache.kafka.connect.errors.ConnectException: An exception occurred\n\tat io.debezium.X.y(X.java:1)\n"
        "Caused by: io.debezium.DebeziumException: java.lang.X\n\tat a.b(C.java:2)\n"
        'Caused by: org.postgresql.util.PSQLException: FATAL: password authentication failed for user "x"\n\t... 3\n'
    )
    assert root_cause(trace) == 'FATAL: password authentication failed for user "x"'
    assert root_cause("plain words\nmore") == "plain words"
    assert root_cause("") == ""


def test_kafka_options_reach_a_java_client_under_its_names() -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "ssl.ca.location": "/ca.pem"}
    kafka = KafkaConfig(bootstrap="b:9092", options={**options, "sasl.username": "u", "sasl.password": 'p"w'})
    java = kafka.java()
    assert java["bootstrap.servers"] == "b:9092" and java["ssl.truststore.location"] == "/ca.pem"
    assert 'password="p\\"w"' in java["sasl.jaas.config"] and "sasl.password" not in java
    assert kafka.spark() == {f"kafka.{key}": value for key, value in java.items()}


def test_sources_whose_names_differ_in_case_alone_have_passwords_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    file.write_text(
        "{kafka: {bootstrap: 'a:1'}, warehouse: w, views: {v: {sql: SELECT 1}}, sources: {"
        "shop: {kind: postgres, url: 'postgresql://u:one@a/d'}, Shop: {kind: postgres, url: 'postgresql://u:two@b/d'}}}"
    )
    debezium = _Debezium(load_config(file), ["shop", "Shop"])
    told = {name: debezium._supervised[name].connector.config[PASSWORD] for name in ("shop", "Shop")}
    assert [debezium._secrets[text.removeprefix("${env:").removesuffix("}")] for text in told.values()] == [
        "one",
        "two",
    ]
