"""What ``install`` leaves behind in a small file beside the warehouse: which relations are captured, and since when."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import orjson

from viewkeeper.warehouse.layout import write_atomically
from viewkeeper.warehouse.streams import storage


@dataclass(frozen=True)
class Captured:
    """Since which position of the log a relation is captured, and how the server names its being published.

    ``again``: it had been captured before, with a gap. Not ``active``: no view used it at the last ``install``.
    """

    since: int
    mark: str
    again: bool = False
    active: bool = True


@dataclass
class Memory:
    """What ``install`` left behind; empty before the first one."""

    made_slot: bool = False
    confirmed: int = 0  # where the slot stood when last seen to be the one that was made then
    overtaken: bool = False  # the slot was made anew by somebody else
    relations: dict[str, Captured] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Memory:
        try:
            content = orjson.loads(file.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return cls()
        relations = {name: Captured(**entry) for name, entry in content.pop("relations").items()}
        return cls(**content, relations=relations)

    @property
    def active(self) -> dict[str, Captured]:
        return {name: captured for name, captured in self.relations.items() if captured.active}

    def write(self, file: Path) -> None:
        with storage(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, orjson.dumps(self).decode())
