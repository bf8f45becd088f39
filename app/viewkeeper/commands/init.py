"""``viewkeeper init``: topics, capture and the first load of every view; what is there already is left alone."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from viewkeeper.commands.logs import show_log
from viewkeeper.commands.names import require_view
from viewkeeper.config import load_config
from viewkeeper.counts import some
from viewkeeper.job.assembly import Project, assemble
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.moving import settle_groups
from viewkeeper.job.opening import Opening
from viewkeeper.warehouse.durability import disk
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.warehouse import Warehouse


def run(args: argparse.Namespace) -> int:
    show_log()
    config = load_config(args.conf)
    for name in args.reload or ():
        require_view(config, name)
    # `--reload` without a name means every view; without the option, none.
    reload = () if args.reload is None else (args.reload or list(config.views))
    project = assemble(config)
    root = config.warehouse
    before = {group: WarehouseReader(root, group).newest() for group in project.groups}
    with Warehouse(root, keep=config.keep).lock():
        settle_groups(project, reload)
        cuts = {group: _opened(project.part(group), reload).cut for group in project.groups}
    for name, capture in project.captures.items():
        for line in capture.installed():
            print(f"{name}: created {line}")
    for group, cut in cuts.items():
        of_group = "" if len(cuts) == 1 else f"group {group}: "
        loaded = cut != before[group]
        stand = f"{some(len(cut.versions), 'view')} at cut {cut.cut}, update {cut.last_update}"
        print(f"{of_group}{stand}{'' if loaded else ', nothing to do'}")
    return 0


def _opened(part: Project, reload: Collection[str]) -> Keeper:
    config = part.config
    mine = [name for name in reload if name in part.views]
    return Opening(part, Warehouse(config.warehouse, part.group, config.keep, disk(config.durability)), mine).open()
