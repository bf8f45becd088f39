"""Work spread over processes, with a bar on the terminal; results come in the order of the jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Job = TypeVar("Job")
Result = TypeVar("Result")

WORKERS = min(2, os.cpu_count() or 1)


def each(work: Callable[[Job], Result], jobs: Sequence[Job], what: str) -> Iterator[Result]:
    """The results of the jobs. ``work`` must be a function of a module; an error in it is raised here."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    shown = Console(stderr=True)
    with (
        ProcessPoolExecutor(WORKERS) as pool,
        Progress(*columns, console=shown, transient=True, disable=not sys.stderr.isatty()) as bar,
    ):
        task = bar.add_task(what, total=len(jobs))
        for result in pool.map(work, jobs):
            bar.advance(task)
            yield result
