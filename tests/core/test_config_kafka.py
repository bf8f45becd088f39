"""Kafka's client options: named as librdkafka names them, translated for Java, or refused by name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.core.test_config import load, problems
from tests.core.test_config_refusals import with_kafka
from viewkeeper.config import KafkaConfig


def java(**options: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in options.items()}
    told = KafkaConfig.model_validate({"bootstrap": "a:1", "options": named}).java()
    assert told.pop("bootstrap.servers") == "a:1"
    return told


def test_the_alias_of_the_sasl_mechanism_reaches_java_and_chooses_the_login() -> None:
    told = java(security_protocol="sasl_ssl", sasl_mechanisms="scram-sha-512", sasl_username="u", sasl_password="p")
    assert told == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="u" password="p";',
    }


def test_certificates_and_keys_in_files_or_as_text_are_javas_stores(tmp_path: Path) -> None:
    for name in ("chain", "key"):
        (tmp_path / name).write_text(f"the {name}")
    stores = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": "the chain", "ssl.keystore.key": "the key"}
    files = java(ssl_certificate_location=str(tmp_path / "chain"), ssl_key_location=str(tmp_path / "key"))
    assert files == java(ssl_certificate_pem="the chain", ssl_key_pem="the key") == stores
    assert java(ssl_ca_pem="the ca") == {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": "the ca"}
    assert java(ssl_keystore_location="/k.p12", ssl_keystore_password="p") == {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": "/k.p12",
        "ssl.keystore.password": "p",
    }


def test_a_host_name_that_is_not_to_be_checked_is_an_empty_algorithm_to_java() -> None:
    assert java(ssl_endpoint_identification_algorithm="none") == {"ssl.endpoint.identification.algorithm": ""}
    assert java(ssl_endpoint_identification_algorithm="https") == {"ssl.endpoint.identification.algorithm": "https"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("sasl.mechanism: GSSAPI", "sasl.mechanism"),
        ("sasl.mechanisms: OAUTHBEARER", "sasl.mechanisms"),
        ("sasl.oauthbearer.method: oidc", "sasl.oauthbearer.method"),
        ("sasl.kerberos.keytab: x", "sasl.kerberos.keytab"),
        ("ssl.crl.location: x", "ssl.crl.location"),
        ("ssl.cipher.suites: x", "ssl.cipher.suites"),
        ("enable.ssl.certificate.verification: false", "enable.ssl.certificate.verification"),
        ("ssl.ca.location: /tmp", "ssl.ca.location"),
        ("ssl.truststore.location: x", "TrustStores"),
        ("sasl.jaas.config: x", "JAAS"),
    ],
)
def test_what_only_one_of_the_clients_can_do_is_refused_by_name(tmp_path: Path, options: str, named: str) -> None:
    (found,) = problems(tmp_path, with_kafka(options))
    assert found.startswith("kafka.options: ") and named in found


def test_files_that_options_name_are_meant_from_the_configurations_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    made = ["-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "ca.pem", "-subj", "/CN=x"]
    subprocess.run(["openssl", "req", *made], cwd=tmp_path, check=True, capture_output=True)
    given = "security.protocol: ssl, ssl.ca.location: ca.pem, ssl.certificate.location: ca.pem, ssl.key.location: "
    options = load(tmp_path, with_kafka(given + "key.pem")).kafka.options
    assert options["ssl.ca.location"] == str(tmp_path / "ca.pem")
    older = ["-traditional", "-in", "key.pem", "-out", "old.pem"]
    subprocess.run(["openssl", "rsa", *older], cwd=tmp_path, check=True, capture_output=True)
    (found,) = problems(tmp_path, with_kafka(given + "old.pem"))
    assert "PKCS #8" in found and "openssl pkcs8 -topk8" in found


def test_a_refusal_quotes_no_secret(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, with_kafka("security.protocol: ssl, ssl.key.pem: hunter2"))
    assert "hunter2" not in found
