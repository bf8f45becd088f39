"""Kafka in a configuration: where the broker is, and client options, for librdkafka and for Java alike.

Viewkeeper's own clients are librdkafka's; Spark and Kafka Connect have Java's. Users name options as librdkafka does,
and what Java calls otherwise is translated. An option of security that only one of them knows is refused by name: the
other client would do without what it protects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, ValidationInfo

from viewkeeper.config_values import Section, absolute
from viewkeeper.errors import Problem

_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]/]+):(\d{1,5})")

# What Viewkeeper decides for its own clients; another value would break a promise rather than tune anything.
_WHERE = {"bootstrap.servers", "metadata.broker.list"}
_OWN_OPTIONS = {
    *_WHERE,
    "group.id",
    "transactional.id",
    "isolation.level",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "auto.offset.reset",
    "acks",
    "request.required.acks",
}

_ALIASES = {"sasl.mechanisms": "sasl.mechanism"}
"""Names of librdkafka's for one and the same option; Java knows the second."""

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

# The other client has no such option, or means something else by it.
_ONLY_LIBRDKAFKA = {
    "ssl.ca.certificate.stores": "name the certificates by ssl.ca.location",
    "ssl.cipher.suites": "leave the choice to the broker's ssl.cipher.suites",
    "ssl.crl.location": "let the broker's certificate be checked by ssl.ca.location alone",
    "ssl.engine.location": "give the key by ssl.key.location",
    "ssl.engine.id": "give the key by ssl.key.location",
    "ssl.providers": "leave it out",
    "plugin.library.paths": "leave it out",
}
_ONLY_LIBRDKAFKA_FAMILIES = ("sasl.oauthbearer.", "sasl.kerberos.", "https.ca.", "enable.sasl.oauthbearer.")

_PKCS8 = re.compile(r"-----BEGIN (?:ENCRYPTED )?PRIVATE KEY-----")


def _bootstrap(value: str) -> str:
    for address in value.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or not 0 < int(match[1]) < 65536:
            raise ValueError(f"must be host:port, or several with commas between, not {value!r}")
    return value


def _options(value: Any, info: ValidationInfo) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of Kafka client options")
    for key, option in value.items():
        if isinstance(option, list | Mapping) or option is None:
            raise ValueError(f"option {key} must be text, a number, true or false")
        if key in _OWN_OPTIONS:
            remedy = "set kafka.bootstrap" if key in _WHERE else "leave it out"
            raise ValueError(f"option {key} is not for the configuration to decide; {remedy}")
        if (alias := _ALIASES.get(key)) in value:
            raise ValueError(f"options {key} and {alias} are one and the same; keep one of them")
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items()}
    return {k: absolute(v, info) if k.endswith(".location") else v for k, v in texts.items()}


class KafkaConfig(Section):
    """Where the broker is; ``options`` are named as librdkafka names them and may hold secrets."""

    bootstrap: Annotated[str, AfterValidator(_bootstrap)]
    options: Annotated[dict[str, str], PlainValidator(_options)] = Field(default_factory=dict, repr=False)

    def client(self, **settings: Any) -> dict[str, Any]:
        """The settings of a confluent-kafka client; ``group_id="g"`` sets ``group.id``."""
        own = {key.replace("_", "."): value for key, value in settings.items()}
        quiet = {"log_level": 0}  # what matters comes back as an error; the rest would go to the terminal
        return {**quiet, **self.options, "bootstrap.servers": self.bootstrap, **own}

    def spark(self) -> dict[str, str]:
        """The same options for Spark's Kafka source."""
        return {f"kafka.{key}": value for key, value in self.java().items()}

    def java(self) -> dict[str, str]:
        """The same options for a Java client, which names some of them otherwise."""
        java = {_ALIASES.get(key, key): value for key, value in self.options.items()}
        for key in ("security.protocol", "sasl.mechanism"):  # librdkafka takes small letters, too
            java |= {key: java[key].upper()} if key in java else {}
        for translate in (_login, _trust, _identity, _host_name):
            translate(java)
        return {**java, "bootstrap.servers": self.bootstrap}

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong with the options, as far as this machine can tell without a broker: what, and the remedy."""
        found = [*_not_for_java(self.options)]
        yield from found
        if not found and (refused := _refused_by_librdkafka(self.options)):
            yield refused
        elif not found:
            yield from _unreadable(self.options)


def kafka_problems(config: KafkaConfig, file: str) -> list[Problem]:
    """The problems of well-formed options."""
    if not config.options:
        return []
    return [Problem(f"{file}: kafka.options", what, remedy) for what, remedy in config.problems()]


# ---- from librdkafka's names to Java's


def _login(java: dict[str, str]) -> None:
    user, password = java.pop("sasl.username", None), java.pop("sasl.password", None)
    if user is None or password is None:
        return
    scram = java.get("sasl.mechanism", "").startswith("SCRAM")
    module = "scram.ScramLoginModule" if scram else "plain.PlainLoginModule"
    quoted = [value.replace("\\", "\\\\").replace('"', '\\"') for value in (user, password)]
    login = f'required username="{quoted[0]}" password="{quoted[1]}";'
    java["sasl.jaas.config"] = f"org.apache.kafka.common.security.{module} {login}"


def _trust(java: dict[str, str]) -> None:
    """Whom the client believes."""
    if file := java.pop("ssl.ca.location", None):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": file}
    if text := java.pop("ssl.ca.pem", None):
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": text}
    java.pop("enable.ssl.certificate.verification", None)


def _identity(java: dict[str, str]) -> None:
    """Who the client is: Java takes key and certificates in one store, or as text."""
    pem = {
        "ssl.keystore.certificate.chain": _pem(java, "ssl.certificate"),
        "ssl.keystore.key": _pem(java, "ssl.key"),
    }
    if given := {name: text for name, text in pem.items() if text}:
        java |= {"ssl.keystore.type": "PEM", **given}
    elif "ssl.keystore.location" in java:
        java["ssl.keystore.type"] = "PKCS12"  # all that librdkafka reads


def _pem(java: dict[str, str], what: str) -> str:
    file, text = java.pop(f"{what}.location", None), java.pop(f"{what}.pem", None)
    return text or (Path(file).read_text(encoding="utf-8") if file else "")


def _host_name(java: dict[str, str]) -> None:
    if java.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""


# ---- what cannot be


def _not_for_java(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Options that librdkafka would heed and the job's Java client could not."""
    for key, value in options.items():
        if key in _ONLY_LIBRDKAFKA:
            yield f"option {key} is one that the job's Java client does not have", _ONLY_LIBRDKAFKA[key]
        elif key.startswith(_ONLY_LIBRDKAFKA_FAMILIES):
            yield f"option {key} belongs to a login that is not supported", f"use {', '.join(_MECHANISMS)}"
        elif _ALIASES.get(key, key) == "sasl.mechanism" and value.upper() not in _MECHANISMS:
            yield f"{key} {value!r} is not supported", f"use {', '.join(_MECHANISMS)}"
        elif key == "enable.ssl.certificate.verification" and value.lower() not in ("true", "t", "1"):
            yield (
                f"option {key} cannot be {value} for the job's Java client",
                "name the certificates by ssl.ca.location",
            )
        elif key == "ssl.ca.location" and (value.endswith("/probe") or os.path.isdir(value)):
            yield f"{key} must name one file for the job's Java client", "put the certificates into one PEM file"


def _refused_by_librdkafka(options: Mapping[str, str]) -> tuple[str, str] | None:
    """What the client itself says of its options; it needs no broker for that."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({"log_level": 0, **options})
    except KafkaException as error:
        said = " ".join(error.args[0].str().removeprefix("Failed to create admin client: ").split())
        return f"Kafka's client refuses them: {_without(said, options)}", "correct it, or leave it out"
    except (TypeError, ValueError) as error:  # callbacks are for programs
        return f"Kafka's client refuses them: {_without(str(error), options)}", "leave it out"
    return None


def _without(said: str, options: Mapping[str, str]) -> str:
    """The same without a secret that it may quote."""
    secrets = [value for key, value in options.items() if re.search(r"password|secret|\.pem$|key", key) and value]
    for secret in secrets:
        said = said.replace(secret, "***")
    return said


def _unreadable(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Keys in a form that only librdkafka reads."""
    key = _pem(dict(options), "ssl.key")
    if key and not _PKCS8.search(key):
        remedy = "convert it: openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW"
        yield "the private key is not in PKCS #8, the only form that the job's Java client reads", remedy
