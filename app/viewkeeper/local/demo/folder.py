"""The demo's folder: where everything of a demo lies, and how an earlier demo makes room for the next."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from viewkeeper.errors import UsageError

MARKER = ".viewkeeper-demo"


@dataclass(frozen=True)
class DemoFolder:
    """The paths of one demo."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "demo.yaml"

    @property
    def broker(self) -> Path:
        return self.root / "broker"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def make(self) -> None:
        """Makes the folder anew; only what an earlier demo left is removed."""
        try:
            self._make_room()
            self.logs.mkdir(parents=True)
            (self.root / MARKER).write_text("Made by `viewkeeper demo`; the next demo replaces this folder.\n")
            # Where the broker and Spark put their logs is their own affair; here all logs are found in one place.
            self.link_log("broker", "broker/broker.log")
            self.link_log("spark", "warehouse/logs/spark.log")
        except OSError as error:
            what = f"cannot be made ({error.strerror})"
            raise UsageError.at(str(self.root), what, "choose another folder with --dir") from None

    def link_log(self, name: str, file: str) -> None:
        """Makes a log file of a part, which need not be there yet, one of the demo's logs."""
        os.symlink(f"../{file}", self.logs / f"{name}.log")

    def write_config(self, text: str) -> None:
        """For our eyes only: it may hold a password."""
        with os.fdopen(
            os.open(self.config, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write(text)

    def _make_room(self) -> None:
        if not os.path.lexists(self.root):
            return
        if self.root.is_symlink() or not self.root.is_dir():
            raise UsageError.at(str(self.root), "is no folder", "choose another with --dir")
        if not any(self.root.iterdir()):
            self.root.rmdir()
        elif (self.root / MARKER).is_file():
            shutil.rmtree(self.root)
        else:
            raise UsageError.at(str(self.root), "was not made by a demo", "choose another folder with --dir")
