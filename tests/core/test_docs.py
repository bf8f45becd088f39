"""What README and docs/ say of files, commands and tables is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from viewkeeper.cli import COMMANDS
from viewkeeper.warehouse.cuts import CUT_SCHEMA, UPDATE_SCHEMA

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
_LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, anchor in _LINK.findall(page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_every_page_can_be_reached_from_the_readme_which_is_short() -> None:
    readme = (ROOT / "README.md").read_text()
    linked = {target for target, _ in _LINK.findall(readme)}
    assert {str(page.relative_to(ROOT)) for page in PAGES} <= {"README.md", *linked}
    assert len(readme.splitlines()) <= 150


def test_the_design_names_every_command_and_every_column() -> None:
    design = (ROOT / "docs" / "design.md").read_text()
    commands = design.partition("\n## Commands\n")[2].partition("\n## ")[0]
    assert {command.name for command in COMMANDS} == set(re.findall(r"(?:^\| |· )`(\w+)", commands, re.MULTILINE))
    tables = design.partition("\n## Warehouse\n")[2].partition("\n\n    V as of k")[0]
    listed = dict(re.findall(r"<warehouse>/(\w+)/<\w+>[^:]*: ((?:.|\n(?! +<))*)", tables))
    for table, schema in {"cuts": CUT_SCHEMA, "updates": UPDATE_SCHEMA}.items():
        columns = re.sub(r"\{[^}]*\}|\([^)]*\)", "", listed[table])
        assert [c.strip() for c in columns.split(",") if c.strip() != "_cut"] == schema.names
