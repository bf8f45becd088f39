"""Whether a source is still the database, and the history of it, that the newest cut was made from."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from viewkeeper.config_groups import ALL
from viewkeeper.managers.sources import Source
from viewkeeper.warehouse.layout import write_atomically

_WRITING = threading.Lock()  # groups work at the same time, and share the file


@dataclass(frozen=True)
class SourceIdentities:
    """What sources say of themselves, remembered in a small file beside the warehouse's tables."""

    file: Path

    @classmethod
    def of(cls, warehouse: Path, group: str = ALL) -> SourceIdentities:
        """Those that a group's cuts were made from: each group has a history of its own."""
        return cls(warehouse / ("sources.json" if group == ALL else f"sources-{group}.json"))

    def remember(self, sources: Mapping[str, Source]) -> None:
        """From now on these are the right ones."""
        told = {name: identity for name, source in sources.items() if (identity := source.identity())}
        self._write(told)

    def note(self, sources: Mapping[str, Source]) -> None:
        """Remembers the sources as they are now; raises SourceError where one is not what it was."""
        told = {name: source.identity() for name, source in sources.items()}
        self.require(sources)  # afterwards: what happens in between is in neither
        self._write({name: identity for name, identity in told.items() if identity})

    def require(self, sources: Mapping[str, Source], used: Mapping[str, Collection[str]] | None = None) -> None:
        """Raises SourceError where a remembered source is another one now, or went back in its history.

        ``used`` are the relations of each that matter, if not all do.
        """
        known = self._read()
        for name, source in sources.items():
            if name in known:
                source.require_identity(known[name] if used is None else _of(known[name], used[name]))

    def _write(self, told: Mapping[str, dict[str, str]]) -> None:
        if told:
            with _WRITING:
                write_atomically(self.file, orjson.dumps({**self._read(), **told}).decode())

    def learn(self, sources: Mapping[str, Source]) -> None:
        """Remembers those of the sources that nothing is known of yet, once they have shown to be the right ones."""
        known = self._read()
        self.remember({name: source for name, source in sources.items() if name not in known})

    def of_source(self, name: str) -> Mapping[str, str]:
        """What a source has said of itself; nothing if it is not remembered."""
        return self._read().get(name, {})

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            known: dict[str, dict[str, str]] = orjson.loads(self.file.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return known


def _of(identity: Mapping[str, str], relations: Collection[str]) -> dict[str, str]:
    """What it says of the source as such, and of these relations."""
    tables = {f"table {relation}" for relation in relations}
    return {what: told for what, told in identity.items() if not what.startswith("table ") or what in tables}
