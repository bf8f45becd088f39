"""Files of what is too large for memory: they have no name, so whatever ends a process, nothing of them stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LARGE = {
    "a table that is mapped": """
from viewkeeper.warehouse.mapped import gather
batch = pa.record_batch({"text": ["x" * 100_000] * 20})
held = gather((batch for _ in range(40)), batch.schema)
""",
    "images that are not a table yet": """
from viewkeeper.warehouse.mapped import Spool
batch = pa.record_batch({"text": ["x" * 100_000] * 20})
held = Spool(batch.schema)
held.write(batch)
""",
    "a bag that is being summed": """
from viewkeeper.warehouse.spill import Consolidator
table = pa.table({"id": list(range(1_000)), "_count": [1] * 1_000})
held = Consolidator(table.schema, limit_rows=10)
held.add(table)
""",
    "a transaction that has not ended": """
from viewkeeper.queue.spool import SpooledList
held = SpooledList()
held.append("x", 1 << 30)
""",
}


@pytest.mark.parametrize("what", LARGE)
def test_a_process_that_is_killed_leaves_no_temporary_file(what: str, tmp_path: Path) -> None:
    program = f"import pyarrow as pa\n{LARGE[what]}\nprint('held', flush=True)\ninput()"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        used = [str(fd.readlink()) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
        assert f"{tmp_path}/" in " ".join(used) + Path(f"/proc/{process.pid}/maps").read_text()
    finally:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []
