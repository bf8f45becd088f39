"""Where ``make setup`` put the jars, and the Java that runs them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

from viewkeeper.errors import UsageError

INSTALL_JAVA = "install it: sudo apt-get install openjdk-17-jre-headless"


def jar_folder(of: Literal["broker", "connect", "spark"]) -> Path:
    """The folder that holds the jars of the broker, of Kafka Connect or of Spark's connectors.

    ``VIEWKEEPER_JARS`` names the folder above it; without it, that is ``jars`` in the virtual environment.
    """
    folder = Path(os.environ.get("VIEWKEEPER_JARS") or Path(sys.prefix, "jars"), of).absolute()
    if not any(folder.glob("*.jar")):
        raise UsageError.at(str(folder), f"the jars of the {of} are not here", "run: make setup")
    return folder


def java() -> str:
    """The Java to start: that of ``JAVA_HOME``, else the first in the path."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin")) if home else None)
    if found is None:
        raise UsageError.at("java", f"there is no Java {'in JAVA_HOME' if home else 'on this machine'}", INSTALL_JAVA)
    return found
