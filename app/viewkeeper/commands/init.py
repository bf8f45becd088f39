"""``viewkeeper init``: topics, capture and the first load of every view; what is there already is left alone."""

from __future__ import annotations

import argparse

from viewkeeper.commands.logs import show_log
from viewkeeper.commands.names import require_view
from viewkeeper.config import load_config
from viewkeeper.job.assembly import assemble
from viewkeeper.job.opening import Opening
from viewkeeper.warehouse.warehouse import Warehouse


def run(args: argparse.Namespace) -> int:
    show_log()
    config = load_config(args.conf)
    for name in args.reload or ():
        require_view(config, name)
    # `--reload` without a name means every view; without the option, none.
    reload = () if args.reload is None else (args.reload or list(config.views))
    project = assemble(config)
    warehouse = Warehouse(config.warehouse, keep=config.keep)
    with warehouse.lock():
        before = warehouse.newest()
        keeper = Opening(project, warehouse, reload).open()
    for name, capture in project.captures.items():
        for line in capture.installed():
            print(f"{name}: created {line}")
    loaded = keeper.cut.cut != (-1 if before is None else before.cut)
    print(f"{len(project.views)} views at cut {keeper.cut.cut}" + ("" if loaded else ", nothing to do"))
    return 0
