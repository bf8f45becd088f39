"""Tables that fit their terminal, and messages of view topics as people read them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from rich.cells import cell_len

from viewkeeper.commands import tail_text
from viewkeeper.commands.read_table import fits, lines
from viewkeeper.warehouse.cuts import WarehouseTransaction
from viewkeeper.warehouse.warehouse import Warehouse

from .status_worlds import Place

WIDE = [f"column_{i:02}" for i in range(24)]


@pytest.mark.parametrize("width", [80, 100])
def test_long_texts_are_shortened_and_numbers_and_times_never_are(width: int) -> None:
    row = (12345678901234567, "x" * 300, "2026-01-02T03:04:05Z", "-19.90", None, 1)
    names = ["id", "description", "at", "total", "note", "_count"]
    drawn = lines(names, [row], width, numbers=["id", "total", "_count"])
    assert max(map(cell_len, drawn)) == width
    assert "12345678901234567" in drawn[2] and "2026-01-02T03:04:05Z" in drawn[2] and "-19.90" in drawn[2]
    assert "xxx…" in drawn[2] and "NULL" in drawn[2] and drawn[2].endswith("1")


@pytest.mark.parametrize("width", [80, 100])
def test_too_many_columns_become_a_record_a_row(width: int) -> None:
    rows = [tuple(f"{name} of {n}, and more" for name in WIDE) for n in range(2)]
    assert not fits(WIDE, rows, width)
    drawn = lines(WIDE, rows, width)
    assert len(drawn) == 2 * (1 + len(WIDE)) and max(map(cell_len, drawn)) <= width
    assert drawn[0].startswith("── row 1 ─") and drawn[1] == "column_00  column_00 of 0, and more"


def test_a_long_value_of_a_record_goes_on_below_itself() -> None:
    drawn = lines(["a" * 30, "b" * 30, "c"], [("x" * 45, 1, None)], 60)
    assert drawn[1:4] == ["a" * 30 + "  " + "x" * 28, " " * 32 + "x" * 17, "b" * 30 + "  1"]


def test_what_would_steer_the_terminal_is_written_out() -> None:
    drawn = lines(["a", "b"], [("two\nlines", "\x1b[31mred")], 80)
    assert drawn[2] == "two\\nlines  \\x1b[31mred"


def test_wide_letters_take_two_columns() -> None:
    drawn = lines(["name", "n"], [("漢字" * 30, 7)], 40, numbers=["n"])
    assert cell_len(drawn[2]) <= 40 and drawn[2].endswith("…  7")


def on_terminal(command: list[str], folder: Path, columns: int) -> list[str]:
    """What a command writes to a terminal of this width."""
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=child, stderr=child, cwd=folder, env=environment)
    os.close(child)
    written = b""
    while True:
        try:
            written += os.read(parent, 65_536)
        except OSError:  # the terminal is closed: all was read
            break
    os.close(parent)
    assert process.wait(60) == 0, written
    return written.decode().replace("\r", "").splitlines()


def test_on_a_terminal_read_prints_what_fits_and_counts_the_rest(tmp_path: Path) -> None:
    Place(tmp_path).configure({"v": "shop.t"})
    warehouse = Warehouse(tmp_path / "warehouse")
    warehouse.open()
    table = pa.table({"x": [f"row {i}" for i in range(3_000)], "_count": [1] * 3_000})
    warehouse.load("v", table.drop_columns("_count").schema, "SELECT", [table], 0)
    warehouse.commit(WarehouseTransaction(7, {"shop": "1"}, {"shop": 1}, "complete", views=["v"]))
    command = [sys.executable, "-m", "viewkeeper.cli", "read", "conf.yaml", "v"]
    shown = on_terminal(command, tmp_path, 80)
    assert shown[0] == "v at cut 0, update 7"
    assert shown[-2:] == ["… 2,950 more rows; --limit N shows more, --format csv all of them", "3,000 rows"]
    assert len(shown) == 1 + 2 + 50 + 2
    assert len(on_terminal([*command, "--limit", "2"], tmp_path, 80)) == 1 + 2 + 2 + 2
    assert len(on_terminal([*command, "--format", "csv"], tmp_path, 80)) == 3_001


def test_a_message_is_told_as_people_read_it() -> None:
    row = {"name": "Ada", "total": "19.90", "note": None}
    update = {"view": "v", "update": 12, "source": "crm", "txn": "9"}
    changes = [{"row": row, "count": -1}, {"row": row, "count": 3}]
    assert [line.plain for line in tail_text.lines(orjson.dumps({**update, "changes": changes}))] == [
        "update 12 (crm.9)",
        "  - name=Ada, total=19.90, note=NULL",
        "  + 3 × name=Ada, total=19.90, note=NULL",
    ]
    many = {**update, "part": 2, "parts": 3, "changes": [{"row": {"n": n}, "count": 1} for n in range(30)]}
    told = [line.plain for line in tail_text.lines(orjson.dumps(many))]
    assert told[0] == "update 12 (crm.9, part 2 of 3)"
    assert told[-1] == "  … 10 more rows; --format json has them all" and len(told) == 22
    seal = {"view": "v", "sealed": 5, "last_update": 12, "positions": {}}
    assert [line.plain for line in tail_text.lines(orjson.dumps(seal))] == ["cut 5: the view stands at update 12"]
    assert [line.plain for line in tail_text.lines(b'{"n":28}')] == ['{"n":28}']
