"""Kafka Connect's REST API, as far as its supervisor needs it."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

_SECONDS = 20.0


class Unanswered(Exception):
    """The API does not answer (yet, or any more)."""


class Refused(Exception):
    """The API refuses what it was asked to do, for the reason it gives."""


@dataclass(frozen=True)
class ConnectorState:
    """``failure`` is why the connector or its task has failed; None while it runs or starts."""

    name: str
    running: bool
    failure: str | None


class ConnectRest:
    """The API at a port of this machine; ``user`` and ``password`` are what its worker was told to ask for."""

    def __init__(self, port: int, user: str, password: str):
        self._base = f"http://127.0.0.1:{port}"
        token = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
        # A proxy of the environment is not asked for this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ready(self) -> bool:
        try:
            self._call("GET", "/connectors")
        except (Unanswered, Refused):
            return False
        return True

    def create(self, name: str, config: dict[str, str]) -> None:
        """Creates the connector, which then starts."""
        self._call("PUT", f"/connectors/{name}/config", config)

    def delete(self, name: str) -> None:
        """Stops the connector, and forgets it."""
        self._call("DELETE", f"/connectors/{name}")

    def states(self) -> list[ConnectorState]:
        found = self._call("GET", "/connectors?expand=status")
        return [_state(name, entry["status"]) for name, entry in found.items()]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, self._headers, method=method)
        try:
            with self._opener.open(request, timeout=_SECONDS) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace")
            raise _answered(said) from None
        except (OSError, ValueError) as error:
            raise Unanswered(str(error)) from None


def _answered(said: str) -> Refused | Unanswered:
    """What an error's text means: the API answers in JSON; a page comes from its server while the API is not there."""
    try:
        return Refused(str(json.loads(said)["message"]))
    except (ValueError, KeyError, TypeError):
        return Unanswered(said)


def _state(name: str, status: dict[str, Any]) -> ConnectorState:
    parts = [status["connector"], *status["tasks"]]
    failed = [part for part in parts if part["state"] == "FAILED"]
    running = len(parts) > 1 and all(part["state"] == "RUNNING" for part in parts)
    return ConnectorState(name, running, root_cause(failed[0].get("trace", "")) if failed else None)


def root_cause(trace: str) -> str:
    """What a Java trace says in one line: the message of its innermost cause, without the names of classes."""
    causes = re.findall(r"^(?:Caused by: )?(?:[\w$]+\.)+[\w$]+(?:: (.*))?$", trace, re.MULTILINE)
    told = [cause for cause in causes if cause]
    line = told[-1] if told else trace.strip().partition("\n")[0]
    return re.sub(r"^(?:(?:[\w$]+\.)+[\w$]+: )+", "", line).strip()
