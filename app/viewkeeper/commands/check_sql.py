"""``check --sql``: what PostgreSQL servers lack, as scripts to paste into psql; one for each source and role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from psycopg.conninfo import conninfo_to_dict

from viewkeeper.capture.postgres_findings import Finding
from viewkeeper.config import Config
from viewkeeper.config_sources import PostgresConfig


def scripts(config: Config, found: Mapping[str, Sequence[Finding]]) -> Iterator[str]:
    """The lines of all scripts, given what was found per source."""
    missing = {name: [f for f in findings if f.verdict == "problem"] for name, findings in found.items()}
    if not any(missing.values()):
        yield "-- no statement is missing"
    for name, findings in missing.items():
        section = config.sources[name]
        assert isinstance(section, PostgresConfig)
        database = conninfo_to_dict(section.url).get("dbname") or ""
        for role in dict.fromkeys(f.script.role for f in findings if f.script is not None):
            yield f"-- source {name}: as {role}, in database {database}"
            yield from _script(role, findings)
            yield ""
        for finding in findings:
            if finding.script is None:
                yield f"-- source {name}, by no statement alone: {_line(str(finding))}"


def _script(role: str, findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        if finding.script is not None and finding.script.role == role:
            yield f"-- {_line(finding.what)}"
            yield from (f"{statement};" for statement in finding.script.statements)
            if finding.script.then:
                yield f"-- {finding.script.then}"


def _line(text: str) -> str:
    """A text that ends with its line: a name in it must not become a statement."""
    return " ".join(text.split())
