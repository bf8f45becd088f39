"""Whether a source is still the database, and the history of it, that the newest cut was made from."""

from __future__ import annotations

import threading
from collections.abc import Mapping
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
        if told:
            with _WRITING:
                write_atomically(self.file, orjson.dumps({**self._read(), **told}).decode())

    def require(self, sources: Mapping[str, Source]) -> None:
        """Raises SourceError where a remembered source is another one now, or went back in its history."""
        known = self._read()
        for name, source in sources.items():
            if name in known:
                source.require_identity(known[name])

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            known: dict[str, dict[str, str]] = orjson.loads(self.file.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return known
