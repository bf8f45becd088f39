"""The job for spark-submit: ``spark-submit app/job.py CONF [--until-idle]``. Wiring only."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from viewkeeper.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
