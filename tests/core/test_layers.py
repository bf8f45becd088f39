"""The architecture as a test: stations in their order, and a core without I/O (contracts in setup.cfg)."""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_imports_point_downward_and_the_core_does_no_io() -> None:
    # In a process of its own: the linter silences every logger that exists where it runs.
    linter = Path(sys.executable).with_name("lint-imports")
    linted = subprocess.run([linter, "--config", "setup.cfg", "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_every_part_of_the_package_has_its_layer() -> None:
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    layers = {layer.strip().strip("()") for layer in settings["importlinter:contract:stations"]["layers"].split()}
    package = ROOT / "app" / "viewkeeper"
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__", "schemas"} <= layers
