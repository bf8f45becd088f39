"""A first look at the brokers: whether they answer, and if not, what their clients know of the reason."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError as Reason
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from viewkeeper.errors import KafkaError, KafkaRefused

_SILENT = logging.getLogger("viewkeeper.warehouse.brokers.client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

_STEP = 0.5
_HOPELESS = {
    Reason._AUTHENTICATION: "correct sasl.* in kafka.options",
    Reason.SASL_AUTHENTICATION_FAILED: "correct sasl.* in kafka.options",
    Reason._SSL: "correct security.protocol and ssl.* in kafka.options",
}


def metadata(client: Mapping[str, Any], patience: float) -> ClusterMetadata:
    """What the brokers say of their topics, within ``patience`` seconds; KafkaRefused if waiting is no help."""
    said: list[Reason] = []
    admin = AdminClient({**client, "error_cb": said.append}, logger=_SILENT)
    deadline = time.monotonic() + patience
    while True:
        try:
            return admin.list_topics(timeout=min(_STEP, patience))
        except KafkaException as error:
            admin.poll(0)  # calls error_cb
            _give_up_if_hopeless(client, said)
            if time.monotonic() > deadline:
                raise _unanswered(client, said or [error.args[0]]) from None


def _give_up_if_hopeless(client: Mapping[str, Any], said: Sequence[Reason]) -> None:
    for reason in said:
        if reason.code() in _HOPELESS:
            raise KafkaRefused.at(_place(client), f"cannot be used ({_plain(reason)})", _HOPELESS[reason.code()])


def _unanswered(client: Mapping[str, Any], said: Sequence[Reason]) -> KafkaError:
    known = [reason for reason in said if reason.code() != Reason._ALL_BROKERS_DOWN] or said
    return KafkaError.at(
        _place(client), f"cannot be used ({_plain(known[-1])})", "start it, or correct kafka.bootstrap"
    )


def _place(client: Mapping[str, Any]) -> str:
    return f"kafka {client['bootstrap.servers']}"


def _plain(reason: Reason) -> str:
    """What the client said, without the names and times that only its own log needs."""
    text = re.sub(r" \(after \d+ms in state \w+(?:, \d+ identical error\(s\) suppressed)?\)", "", reason.str())
    return " ".join(re.sub(r"^(?:\w+://)?[^ ]+/(?:bootstrap|\d+): ", "", text).split())
