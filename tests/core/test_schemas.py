"""The JSON Schemas in ``schemas/`` are those of today's messages."""

from __future__ import annotations

import json
from pathlib import Path

from viewkeeper.schemas import schema_texts, write_schemas

FOLDER = Path(__file__).parents[2] / "schemas"


def test_the_schemas_in_the_repository_are_current() -> None:
    stored = {path.name: path.read_text() for path in FOLDER.glob("*.schema.json")}
    assert stored == schema_texts(), "run: make schemas"


def test_every_schema_forbids_keys_it_does_not_name() -> None:
    for text in schema_texts().values():
        assert json.loads(text)["additionalProperties"] is False


def test_a_schema_of_a_message_that_is_gone_is_removed(tmp_path: Path) -> None:
    (tmp_path / "old.schema.json").write_text("{}")
    write_schemas(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(schema_texts())
