"""The configuration of Debezium's PostgreSQL connector that the update queue relies on.

All tables, transaction markers and messages of a source go into its one topic. What decides exactness: NULLs stay NULL
(``replace.null.with.default``), every transaction is framed by BEGIN and END, TRUNCATE is told, no snapshot is sent,
and nothing but what was sent moves the slot on (no heartbeats), so that a slot made anew can be told from the old one.
Events may share an LSN (rows of a COPY, a changed key, a TRUNCATE of several tables), and a connector that resumes
between such events leaves the rest of them out, unseen. Without stored offsets it begins with a whole transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import ConfigError, Problem
from viewkeeper.managers.sources.postgres import PREFIX
from viewkeeper.queue.debezium_placeholder import connector_name, placeholder_of

PASSWORD = "database.password"

_TLS = {
    "sslmode": "database.sslmode",
    "sslrootcert": "database.sslrootcert",
    "sslcert": "database.sslcert",
    "sslkey": "database.sslkey",
}

_CONVERTERS = {
    f"{side}.converter{option}": value
    for side in ("key", "value")
    for option, value in {
        "": "org.apache.kafka.connect.json.JsonConverter",
        ".schemas.enable": "false",
        ".replace.null.with.default": "false",
    }.items()
}

_FIXED = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "tasks.max": "1",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "snapshot.mode": "no_data",
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",
    "tombstones.on.delete": "false",
    "message.prefix.include.list": PREFIX,  # barriers; other programs' messages stay out of the topic
    "heartbeat.interval.ms": "0",
    "lsn.flush.mode": "connector",
    # Refuses to go on where the slot is past the offset that Connect remembers: then it was made anew.
    "offset.mismatch.strategy": "no_validation",
    "decimal.handling.mode": "string",
    "interval.handling.mode": "string",
    "binary.handling.mode": "base64",
    "time.precision.mode": "isostring",
    "extended.headers.enabled": "false",
    "poll.interval.ms": "5",
    "max.batch.size": "4096",
    "max.queue.size": "16384",
    "max.queue.size.in.bytes": "67108864",
    "slot.max.retries": "30",
    "slot.retry.delay.ms": "1000",
    # To try again by itself would be to resume: a failure is for a supervisor.
    "errors.max.retries": "0",
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "-1",
    "topic.creation.default.cleanup.policy": "delete",
    **_CONVERTERS,
}


@dataclass(frozen=True)
class Login:
    """How to connect to a source, as a Java driver wants to be told; ``password`` is never shown."""

    host: str
    port: str
    database: str
    user: str
    password: str
    tls: Mapping[str, str]

    def __repr__(self) -> str:
        return f"Login({self.user}@{self.host}:{self.port}/{self.database})"

    @classmethod
    def parse(cls, place: str, url: str) -> Login:
        """The parts of a libpq URL; a ConfigError at ``place`` for what Java's driver cannot do."""
        try:
            given = {key: str(value) for key, value in conninfo_to_dict(url).items()}
        except psycopg.ProgrammingError:  # its words would quote what may be the password
            raise ConfigError.at(place, "cannot be read", "escape what is special in it as %XX") from None
        host = given.get("hostaddr") or given.get("host") or "localhost"
        if unfit := _unfit(given, host):
            raise ConfigError([Problem(place, what, remedy) for what, remedy in unfit])
        user = given.get("user", "")
        return cls(
            host=host,
            port=given.get("port") or "5432",
            database=given.get("dbname") or user,
            user=user,
            password=given.get("password", ""),
            tls={java: given[libpq] for libpq, java in _TLS.items() if libpq in given},
        )


def _unfit(given: Mapping[str, str], host: str) -> list[tuple[str, str]]:
    found = []
    if "service" in given:
        found.append(("names a service, which Debezium cannot look up", "write host, port, user and database"))
    if "," in host or "," in given.get("port", ""):
        found.append(("names several hosts, but a slot lives on one server", "name the one that is the primary"))
    if host.startswith(("/", "@")):
        found.append(("names a socket, which Debezium cannot use", "name a host, such as 127.0.0.1"))
    if not given.get("user"):
        found.append(("names no user", "write postgresql://user:${PASSWORD}@host:port/database"))
    if given.get("sslrootcert") == "system":
        found.append(("has sslrootcert=system, which Debezium does not know", "name the file of the certificates"))
    return found


@dataclass(frozen=True)
class Connector:
    """One source's connector; ``config`` holds a reference or a placeholder where the password belongs."""

    name: str
    config: Mapping[str, str]

    def request(self) -> dict[str, Any]:
        """What Kafka Connect's REST API takes to create it."""
        return {"name": self.name, "config": dict(self.config)}


def connector(section: PostgresConfig, topic: str, login: Login, password: str) -> Connector:
    """The connector that sends the source's changes to the topic; ``password`` is what stands for it.

    Which tables it tells of, the publication decides: a list here, of schemas too, would go on leaving out those that
    are added later, and a table while it has another name.
    """
    # Named after the topic: sources of other projects in the same Kafka Connect may have the same name. Two connectors
    # of the same prefix would wait for each other, for a minute, because their metrics are named by it.
    name, prefix = f"viewkeeper-{topic}", connector_name(topic)
    config = {
        **_FIXED,
        "database.hostname": login.host,
        "database.port": login.port,
        "database.user": login.user,
        "database.dbname": login.database,
        **({PASSWORD: password} if password else {}),
        **login.tls,
        "topic.prefix": prefix,
        "unavailable.value.placeholder": placeholder_of(prefix).text,
        "slot.name": section.slot,
        "database.initial.statements": _slot_is_there(section.slot),
        "publication.name": section.publication,
        "transforms": "one",
        "transforms.one.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.one.regex": ".*",
        "transforms.one.replacement": topic,
    }
    return Connector(name, config)


def _slot_is_there(slot: str) -> str:
    """A statement that fails where the slot is gone: Debezium would make it anew, and lose what came before."""
    # What fails is a cast of a count and words to a number, so that no planner can try it beforehand.
    said = f"count(*) || ' replication slots are named {slot}: it is gone, run viewkeeper init --reload'"
    there = f"pg_replication_slots WHERE slot_name = '{slot}'"
    return f"SELECT CASE WHEN count(*) = 0 THEN ({said})::int END FROM {there}"


def variable_of(written: str, password: str, environment: Mapping[str, str]) -> str | None:
    """The environment variable that holds exactly the password of a URL as the configuration file has it, if one does.

    What a URL writes in %-escapes is decoded by libpq, but never by Kafka Connect.
    """
    named = re.search(r"://[^/?#@]*?:\$\{(\w+)\}@", written) or re.search(r"[?&]password=\$\{(\w+)\}(?:&|$)", written)
    if named is None:
        return None
    value = environment.get(named[1], "")
    return named[1] if value == password == unquote(value) else None
