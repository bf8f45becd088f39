"""The sources of a configuration: a new kind is one subclass of ``SourceConfig`` and its entry in ``KINDS``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PGconn
from pydantic import AfterValidator, Field, PlainValidator, ValidationError, ValidationInfo
from pydantic_core import InitErrorDetails

from viewkeeper.config_values import MOST, AtLeastOne, FilePath, Section, Topic, duration


class SourceConfig(Section):
    """What every kind of source has. ``topic`` is always set in a loaded configuration."""

    kind: str
    topic: Topic = ""  # the default is <source>.updates, filled in where the source's name is known


class SqliteConfig(SourceConfig):
    kind: Literal["sqlite"]
    path: FilePath
    format: Literal["native"] = "native"


def _url(value: Any) -> str:
    """What libpq connects by; never quoted in an error, because it may hold a password."""
    if not isinstance(value, str) or not re.match(r"postgres(ql)?://", value) or server(value) is None:
        raise ValueError("must be a URL; write postgresql://user:${PASSWORD}@host:port/database")
    if said := _refused_by_libpq(value):
        raise ValueError(f"{said}; correct it, or leave it out")
    return value


_NOWHERE = "/nonexistent-viewkeeper"

_NUMBERS = (
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)


def _refused_by_libpq(url: str) -> str:
    """What libpq says of the URL's options, or nothing; it is sent to a socket that is not there, so it asks nobody."""
    parts = conninfo_to_dict(url)
    for key in _NUMBERS:
        if not re.fullmatch(r"\s*-?\d{1,9}\s*", str(parts.get(key, 0))):
            return f"{key} must be a whole number"
    hosts = str(parts.pop("host", None) or parts.pop("hostaddr", None) or "").split(",")
    parts.pop("hostaddr", None)
    nowhere = make_conninfo("", **{**parts, "host": ",".join(_NOWHERE for _ in hosts)})
    connection = PGconn.connect_start(nowhere.encode())
    said = connection.error_message.decode(errors="replace").strip().partition("\n")[0]
    connection.finish()
    return "" if _NOWHERE in said else said


def server(url: str) -> str | None:
    """Where a URL leads, without its database; None if libpq cannot read it."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        return None
    return f"{parts.get('host') or parts.get('hostaddr') or ''}:{parts.get('port') or 5432}"


def _slot(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9_]{0,63}", value):
        raise ValueError("may have small letters, digits and _ only, at most 63, as PostgreSQL demands")
    return value


LONGEST_IDENTIFIER = 63
_LONGEST_TIMEOUT = timedelta(days=MOST // 86_400_000)

MOST_CONNECTIONS = 10_000
LEAST_CONNECTIONS = 3
"""One for a snapshot, one for barriers; the rest are readers."""


def _enough_connections(value: Any) -> int:
    if type(value) is not int or not LEAST_CONNECTIONS <= value <= MOST_CONNECTIONS:
        what = f"must be a whole number from {LEAST_CONNECTIONS} to {MOST_CONNECTIONS}"
        raise ValueError(f"{what}, not {value!r}")
    return value


def _identifier(value: str) -> str:
    if len(value.encode()) > LONGEST_IDENTIFIER:
        raise ValueError(f"is longer than the {LONGEST_IDENTIFIER} bytes that PostgreSQL keeps of a name; shorten it")
    return value


def _statement_timeout(value: Any) -> timedelta:
    found = duration(value)
    if found > _LONGEST_TIMEOUT:
        raise ValueError(f"is longer than PostgreSQL can count; use at most {_LONGEST_TIMEOUT.days}d")
    return found


class PostgresConfig(SourceConfig):
    """``slot`` and ``publication`` are always set in a loaded configuration: viewkeeper_<source>."""

    kind: Literal["postgres"]
    url: Annotated[str, PlainValidator(_url)] = Field(repr=False)
    format: Literal["debezium"] = "debezium"
    schema_name: Annotated[str, AfterValidator(_identifier)] = Field(default="public", alias="schema", min_length=1)
    slot: Annotated[str, AfterValidator(_slot)] = ""
    publication: Annotated[str, AfterValidator(_identifier)] = ""
    max_connections: Annotated[int, PlainValidator(_enough_connections)] = 6
    max_rows_per_second: AtLeastOne | None = None
    statement_timeout: Annotated[timedelta, PlainValidator(_statement_timeout)] = timedelta(minutes=5)


KINDS: dict[str, type[SourceConfig]] = {"sqlite": SqliteConfig, "postgres": PostgresConfig}


def _by_kind(value: Any, info: ValidationInfo) -> SourceConfig:
    """The source's section, read by the model of its kind."""
    if isinstance(value, SourceConfig):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping such as {kind: sqlite, path: ./shop.db}")
    kind, known = value.get("kind"), ", ".join(sorted(KINDS))
    if kind is None:
        raise _wrong("kind", "is missing", f"use {known}")
    if kind not in KINDS:
        raise _wrong("kind", f"{kind!r} is not a known kind of source", f"use {known}")
    return KINDS[kind].model_validate(value, context=info.context)


def _wrong(key: str, what: str, remedy: str) -> ValidationError:
    """A finding about one key of the section that is being read."""
    finding = InitErrorDetails(
        type="value_error", loc=(key,), input=None, ctx={"error": ValueError(f"{what}; {remedy}")}
    )
    return ValidationError.from_exception_data("source", [finding])


AnySource = Annotated[SourceConfig, PlainValidator(_by_kind)]
