"""An error in a view's SQL names the line and column of the configuration file, however YAML writes the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.config import load_config
from viewkeeper.errors import ViewError
from viewkeeper.job.assembly import parse_views

HEAD = """\
# täglich
kafka: {bootstrap: "localhost:1"}
warehouse: ./w
sources: {s: {kind: sqlite, path: ./s.db}}
"""
CATALOG = {("s", "t"): Relation("s", "t", (Column("id", INTEGER), Column("n", INTEGER)))}

STYLES = {
    "literal": "views:\n  v:\n    sql: |\n      SELECT id\n        , wrong\n      FROM s.t\n",
    "folded": "views:\n  v:\n    sql: >\n      SELECT id\n        , wrong\n      FROM s.t\n",
    "stripped, with a remark": "views:\n  v:\n    sql: >- # why\n      SELECT id,\n\n      wrong FROM s.t\n",
    "indented by its indicator": "views:\n  v:\n    sql: |2\n        SELECT id,\n      wrong\n      FROM s.t\n",
    "plain": "views:\n  v:\n    sql: SELECT id,\n      wrong\n      FROM s.t\n",
    "in a flow": "views: {v: {sql: 'SELECT id,\n   wrong FROM s.t'}}\n",
    "single quotes": "views:\n  v:\n    sql: 'SELECT id, ''it''''s'' AS x,\n       wrong FROM s.t'\n",
    "double quotes": 'views:\n  v:\n    sql: "SELECT id,\\n \\"n\\" AS \\u0061\\\n      , wrong\\tFROM s.t"\n',
    "anchored": "views:\n  v:\n    sql: &text !!str |\n      SELECT id,\n      wrong FROM s.t\n",
    "an alias": "views:\n  u: &u\n    sql: >\n      SELECT id,\n      wrong FROM s.t\n  v: *u\n",
    "merged": "views:\n  u: &u\n    sql: >\n      SELECT id,\n      wrong FROM s.t\n  v: {<<: *u, algorithm: sweep}\n",
    "behind variables": "views:\n  v:\n    sql: >\n      SELECT ${LONG}, '$${',\n      ${SHORT} AS c, wrong FROM s.t\n",
    "Windows": "views:\r\n  v:\r\n    sql: |\r\n      SELECT id,\r\n      wrong FROM s.t\r\n",
    "umlauts and wide letters": "views:\n  v:\n    sql: >\n      SELECT 'äöü 🙂' AS x,\n      '🙂', wrong FROM s.t\n",
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_a_problem_of_a_views_sql_names_its_place_in_the_file(
    style: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONG", "id + n + id + n + id")
    monkeypatch.setenv("SHORT", "n")
    file = tmp_path / "conf.yaml"
    text = HEAD + STYLES[style]
    file.write_bytes(text.encode())
    with pytest.raises(ViewError) as caught:
        parse_views(load_config(file), CATALOG, ["v"])
    lines = text[: text.index("wrong")].split("\n")
    wanted = f"{file}:{len(lines)}:{len(lines[-1]) + 1}: views.v.sql: unknown column wrong"
    assert [said for problem in caught.value.problems if (said := str(problem)).startswith(wanted)], caught.value


def test_a_problem_inside_a_variable_is_placed_where_the_variable_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS_OF_T", "id, n,\nid AS more, wrong")
    file = tmp_path / "conf.yaml"
    file.write_text(HEAD + "views:\n  v:\n    sql: >\n      SELECT\n      ${COLUMNS_OF_T} FROM s.t\n")
    with pytest.raises(ViewError, match=rf"{file}:9:7: views.v.sql: unknown column wrong"):
        parse_views(load_config(file), CATALOG)


def test_a_syntax_error_and_a_problem_that_only_refresh_has_are_placed_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "conf.yaml"
    refreshed = "  r:\n    algorithm: refresh\n    sql: >\n      SELECT sum(n) AS s\n      , wrong FROM s.t\n"
    file.write_text(HEAD + "views:\n  v:\n    sql: >\n      SELECT id\n      FROM s.t WHERE\n" + refreshed)
    with pytest.raises(ViewError) as caught:
        parse_views(load_config(file), CATALOG)
    first, second = map(str, caught.value.problems)
    assert first.startswith(f"{file}:9:16: views.v.sql: syntax error near 'WHERE'")
    assert second.startswith(f"{file}:14:9: views.r.sql: unknown column wrong")
