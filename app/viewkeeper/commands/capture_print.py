"""``viewkeeper capture --print``: the connectors, for people who have a Kafka Connect of their own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import yaml

from viewkeeper.capture.connect import reference
from viewkeeper.capture.debezium_connector import Login, connector, variable_of
from viewkeeper.config import Config
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import UsageError
from viewkeeper.job.assembly import assemble

PLACEHOLDER = "<password>"

_RESUMING = (
    "your Kafka Connect resumes from stored offsets, and inside a transaction it then silently leaves out rows that "
    "share a position of the log (of a COPY, a changed key, a TRUNCATE of several tables): before a connector is "
    "started again, after a failure too, delete its offsets "
    "(PUT /connectors/NAME/stop, DELETE /connectors/NAME/offsets, PUT /connectors/NAME/resume)"
)


def print_connectors(config: Config, chosen: list[str]) -> None:
    """Prints a JSON object per source, as Kafka Connect's REST API takes it; no password stands in it."""
    project = assemble(config)
    names = _captured_by_debezium(config, chosen or list(project.sources))
    for name in names:
        section = config.sources[name]
        assert isinstance(section, PostgresConfig)
        login = Login.parse(config.place("sources", name, "url"), section.url)
        password = _stand_in(config, name, login)
        made = connector(section, section.topic, login, password)
        print(json.dumps(made.request(), indent=2))
    _note(
        f"run 'viewkeeper init {config.pasted}' first: it makes the publications and slots that these connectors read"
    )
    _note(_RESUMING)


def _captured_by_debezium(config: Config, names: list[str]) -> list[str]:
    found = [name for name in names if isinstance(config.sources[name], PostgresConfig)]
    if not found:
        what = f"{', '.join(names)} needs no connector: Debezium does not read it"
        raise UsageError.at(config.file, what, f"run 'viewkeeper capture {config.pasted}' for it")
    return found


def _stand_in(config: Config, name: str, login: Login) -> str:
    """What is printed for the password, and what the reader must do about it."""
    if not login.password:
        return ""
    variable = variable_of(_written_url(config, name), login.password, os.environ)
    if variable is None:
        _note(f"{name}: write the password in place of {PLACEHOLDER}, or a reference that your Kafka Connect resolves")
        return PLACEHOLDER
    provider = "config.providers=env, config.providers.env.class=…provider.EnvVarConfigProvider"
    _note(f"{name}: Kafka Connect takes the password from its own environment variable {variable} ({provider})")
    return reference(variable)


def _written_url(config: Config, name: str) -> str:
    """The URL as the file has it, before variables are replaced."""
    tree = yaml.safe_load(Path(config.file).read_text(encoding="utf-8"))
    return str(tree["sources"][name]["url"])


def _note(text: str) -> None:
    print(f"viewkeeper: {text}", file=sys.stderr)
