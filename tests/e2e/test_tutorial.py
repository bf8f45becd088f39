"""The README's tutorial, pasted into a shell as it stands: every command works, and says what is printed below it.

What docs/reading.md goes on with is pasted before its last block, which ends what runs.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.e2e.harness import PATIENCE
from viewkeeper.local.broker import free_ports

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Block:
    """What is to be pasted, and what is said to come out of it."""

    commands: str
    output: str = ""


def tutorial() -> list[Block]:
    *first, last = pasted("README.md", "Your own view in five minutes")
    return [*first, *pasted("docs/reading.md", "What a view tells"), last]


def pasted(page: str, section: str) -> list[Block]:
    """What a section of a page lets its reader paste."""
    _, _, rest = (ROOT / page).read_text().partition(f"\n## {section}\n")
    found = re.findall(r"^ *```(sh|text)\n(.*?)^ *```", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    blocks: list[Block] = []
    for language, text in found:
        text = textwrap.dedent(text)
        blocks[-1:] = [*blocks[-1:], Block(text)] if language == "sh" else [Block(blocks[-1].commands, text)]
    return blocks


def pattern(output: str) -> str:
    """An ellipsis stands for what differs each time; how wide columns are may differ with it."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in output.split("…")]
    return r"\s*" + r"\s*.+?\s*".join(parts) + r"\s*"


def is_over(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_the_tutorial_can_be_pasted_and_says_what_the_readme_says(tmp_path: Path) -> None:
    blocks = tutorial()
    assert len(blocks) == 7 and blocks[0].commands.startswith("make setup\n")
    (tmp_path / ".venv").symlink_to(sys.prefix)  # where `make setup` has been made already
    port = free_ports()
    script = "".join(f"{block.commands}\necho end of block {i}\n" for i, block in enumerate(blocks))
    script = script.replace("make setup\n", "", 1).replace("127.0.0.1:9092", f"127.0.0.1:{port}")
    script = script.replace("viewkeeper broker >", f"viewkeeper broker --port {port} >")
    environment = {name: value for name, value in os.environ.items() if name not in ("PATH", "COLUMNS")}
    environment |= {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    shell = subprocess.Popen(
        ["bash", "--norc"], cwd=tmp_path, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said, _ = shell.communicate(script, timeout=300)
        eventually(lambda: is_over(shell.pid), PATIENCE, "broker and capture have ended")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, said
    said = said.replace(f"127.0.0.1:{port}", "127.0.0.1:9092")
    for i, block in enumerate(blocks):
        output, mark, said = said.partition(f"end of block {i}\n")
        assert mark, f"{block.commands}\n{output}"
        assert re.fullmatch(pattern(block.output), output), f"{block.commands}\n{output}"
