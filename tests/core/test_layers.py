"""The architecture as a test: stations in their order, and a core without I/O (contracts in setup.cfg)."""

from __future__ import annotations

from configparser import ConfigParser
from pathlib import Path

from importlinter import cli

ROOT = Path(__file__).parents[2]


def test_imports_point_downward_and_the_core_does_no_io() -> None:
    broken = cli.lint_imports(config_filename=str(ROOT / "setup.cfg"), no_cache=True)
    assert broken == 0, "see the broken contracts above"


def test_every_part_of_the_package_has_its_layer() -> None:
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    layers = {layer.strip().strip("()") for layer in settings["importlinter:contract:stations"]["layers"].split()}
    package = ROOT / "app" / "viewkeeper"
    parts = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__", "schemas"} <= layers
