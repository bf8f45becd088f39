"""Remedies can be pasted: the configuration's file stands in them, and the fewest views that help."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import viewkeeper
from viewkeeper import remedies
from viewkeeper.remedies import completed

VIEWS = {
    "v": "SELECT id FROM shop.t",
    "w": 'SELECT id FROM "Shop"."u" JOIN crm.c USING (id)',
    "x": "SELECT 1 FROM crm.c",
}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "_known", [])
    remedies.know("my conf.yaml", {"shop": "shop.updates", "crm": "customers"}, VIEWS)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("source shop: gone; run `viewkeeper init --reload`", "run `viewkeeper init 'my conf.yaml' --reload v w`"),
        ("source crm: gone; run `viewkeeper init --reload`", "run `viewkeeper init 'my conf.yaml' --reload w x`"),
        ("topic customers: lost; ('viewkeeper init --reload')", "('viewkeeper init 'my conf.yaml' --reload w x')"),
        ("views.x: it is gone; viewkeeper init --reload", "viewkeeper init 'my conf.yaml' --reload x"),
        ("elsewhere: gone; run `viewkeeper init --reload`", "run `viewkeeper init 'my conf.yaml' --reload`"),
        ("source shop: start `viewkeeper capture`", "start `viewkeeper capture 'my conf.yaml'`"),
        (
            "source shop: run `viewkeeper capture --remove`, then `viewkeeper init --reload`",
            "`viewkeeper capture 'my conf.yaml' --remove shop`, then `viewkeeper init 'my conf.yaml' --reload v w`",
        ),
        ("run 'viewkeeper init' or 'viewkeeper run'", "run 'viewkeeper init 'my conf.yaml'' or"),
        ("source shop: 'viewkeeper init a.yaml --reload v'", "source shop: 'viewkeeper init a.yaml --reload v'"),
        ("see: viewkeeper verify --help", "see: viewkeeper verify --help"),
    ],
)
def test_a_remedy_names_the_configuration_and_the_views_of_its_source(said: str, meant: str) -> None:
    assert completed(said).endswith(meant) or meant in completed(said)


def test_each_line_is_about_its_own_source() -> None:
    lines = completed("source shop: run `viewkeeper init --reload`\nsource crm: run `viewkeeper init --reload`")
    assert [line.rpartition("--reload ")[2] for line in lines.split("\n")] == ["v w`", "w x`"]


def test_without_a_configuration_nothing_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies, "_known", [])
    assert completed("run `viewkeeper init --reload`") == "run `viewkeeper init --reload`"


def test_every_command_that_the_program_tells_is_completed() -> None:
    """A constant that breaks off after the command goes on with the file in its f-string."""
    remedies.know("CONF", {}, {})
    commands = re.compile(r"viewkeeper (?:init|run|capture)\b(?! CONF| $| --print| runs)")
    told = [text for text in _told() if commands.search(completed(text))]
    assert told == []


def _told() -> Iterator[str]:
    """The texts of the program that are no docstrings; what explains the commands themselves is left out."""
    root = Path(viewkeeper.__file__).parent
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0] in ("bench", "simulator") or "arguments" in str(file) or "lab" in file.parts:
            continue
        tree = ast.parse(file.read_text())
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield node.value
