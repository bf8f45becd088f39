"""Writes the JSON Schemas of all messages: ``python -m viewkeeper.schemas schemas``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from viewkeeper.messages import json_schemas


def schema_texts() -> dict[str, str]:
    """The text of every schema file, by its name."""
    return {
        name: json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"
        for name, schema in json_schemas().items()
    }


def write_schemas(folder: Path) -> None:
    """Makes the folder hold exactly the schemas of today's messages."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = schema_texts()
    for old in folder.glob("*.schema.json"):
        if old.name not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_schemas(Path(sys.argv[1] if len(sys.argv) > 1 else "schemas"))
