"""Old age, full disks and crashes at awkward moments: what the newest cut names stays, and errors say who must act."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

from tests.core.test_warehouse import SCHEMA, STATE, content, loaded, rows, transaction
from viewkeeper.errors import NegativeCount, Problem, SourceUnreachable, WarehouseError, WarehouseUnreachable
from viewkeeper.warehouse import retention, view_table, warehouse
from viewkeeper.warehouse.layout import Layout, write_atomically
from viewkeeper.warehouse.log_table import checkpoints
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.spill import Consolidator
from viewkeeper.warehouse.streams import storage
from viewkeeper.warehouse.view_table import ViewTable
from viewkeeper.warehouse.warehouse import Warehouse

DAY = 86_400


class Clock:
    """The time as the warehouse has it; files and cuts are as old as it says."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.root, self.days_ago = root, 0.0
        monkeypatch.setattr(view_table, "time", self)
        for module in (warehouse, retention):
            monkeypatch.setattr(module, "now", lambda: datetime.fromtimestamp(self.time(), UTC))

    def time(self) -> float:
        return time.time() - self.days_ago * DAY

    @contextmanager
    def back(self, days: float) -> Iterator[None]:
        """All that is done meanwhile is done that many days ago."""
        known = set(self.root.rglob("*"))
        self.days_ago = days
        yield
        for file in set(self.root.rglob("*")) - known:
            os.utime(file, (self.time(), self.time()))
        self.days_ago = 0.0


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(tmp_path, monkeypatch)


def grow(kept: Warehouse, first: int, last: int, fold: bool = True) -> None:
    """A cut and a fold for each update; a last cut names the last fold."""
    for k in range(first, last + 1):
        kept.commit(transaction(k, [(1, "a", 1, k)]))
        if fold:
            kept.fold()
    kept.commit(transaction(last))


@pytest.mark.parametrize("updates", [6, 7, 8])
def test_what_the_newest_cut_names_can_be_opened_however_long_it_was_idle(
    tmp_path: Path, clock: Clock, updates: int
) -> None:
    with clock.back(20):
        kept = loaded(tmp_path, [(1, "a", 1)])
        grow(kept, 1, updates)
    kept.vacuum()
    kept.commit(transaction(updates + 1, [(1, "a", 1, updates + 1)]))
    kept.fold()  # a crash here: no cut names it
    expected = Counter({(1, "a"): updates + 2})
    assert content(WarehouseReader(tmp_path)) == expected
    again = Warehouse(tmp_path)
    again.open()
    again.commit(transaction(updates + 1))
    again.vacuum()
    assert content(WarehouseReader(tmp_path)) == expected


def test_the_log_of_a_view_goes_with_its_promise_and_not_before(tmp_path: Path, clock: Clock) -> None:
    with clock.back(30):
        kept = loaded(tmp_path, [(1, "a", 1)])
        grow(kept, 1, 25)
    with clock.back(3):
        grow(kept, 26, 45)
    kept.vacuum()
    log = tmp_path / "views" / "v" / "_delta_log"
    oldest = min(int(file.name[:20]) for file in log.glob("0*.json"))
    assert 10 < oldest <= checkpoints(tmp_path / "views" / "v")[0] <= 26
    # The cut before those of three days ago was the newest until then; so is each since.
    for number in range(26, kept.newest().cut + 1):  # type: ignore[union-attr]
        cut = kept.cut(number)
        table = kept._kept("v", cut)
        assert table is not None, number
        assert sum(table.to_pyarrow_table()["_count"].to_pylist()) == 1 + cut.folded["v"]
    kept.vacuum(timedelta(days=60))  # a promise cannot be renewed for what is gone
    assert content(kept, update=3) == Counter({(1, "a"): 4})


def blocked_checkpoint(table: Path, version: int) -> None:
    """Something in the way of a checkpoint: the commit of that version is made, and then fails."""
    (table / "_delta_log" / f"{version:020}.checkpoint.parquet").mkdir()


def test_a_fold_that_fails_after_its_commit_is_whole_and_not_folded_twice(tmp_path: Path) -> None:
    kept = loaded(tmp_path, [(1, "a", 1)])
    grow(kept, 1, 7)
    kept.commit(transaction(8, [(1, "a", 1, 8)]))
    assert kept.view_table("v").refreshed_version() == 8  # the next makes a checkpoint
    blocked_checkpoint(tmp_path / "views" / "v", 9)
    with pytest.raises(WarehouseError):
        kept.fold()
    kept.fold()
    kept.commit(transaction(8))
    assert content(WarehouseReader(tmp_path)) == Counter({(1, "a"): 9})


def test_a_cut_that_fails_after_its_commit_stands(tmp_path: Path) -> None:
    kept = loaded(tmp_path, [(1, "a", 1)])
    blocked_checkpoint(tmp_path / "cuts" / "all", 19)
    for k in range(1, 25):
        kept.commit(transaction(k, [(1, "a", 1, k)]))
    assert content(WarehouseReader(tmp_path)) == Counter({(1, "a"): 25})


def test_two_threads_may_write_one_file(tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def write() -> None:
        try:
            for _ in range(2_000):
                write_atomically(tmp_path / "status.json", "x" * 600)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and os.listdir(tmp_path) == ["status.json"]


def test_a_mark_is_void_as_soon_as_a_cut_names_a_later_load(tmp_path: Path) -> None:
    kept = loaded(tmp_path)
    kept.mark_inexact("v", "the first reason\nof two lines")
    kept.mark_inexact("v", "a second one")
    assert WarehouseReader(tmp_path).inexact() == {"v": "the first reason\nof two lines"}
    mark = (tmp_path / "inexact" / "v").read_text()
    kept.load("v", SCHEMA, "SELECT 1", [rows(STATE, [(7, "g", 1)])], 0)
    assert "v" in WarehouseReader(tmp_path).inexact()
    kept.commit(transaction(0))
    (tmp_path / "inexact" / "v").write_text(mark)  # a crash between the cut and the clearing
    assert WarehouseReader(tmp_path).inexact() == {}
    again = Warehouse(tmp_path)
    again.open()
    assert not (tmp_path / "inexact" / "v").exists()
    again.mark_inexact("v", "another")
    assert again.inexact() == {"v": "another"}


@contextmanager
def full_disk(bytes_left: int) -> Iterator[None]:
    """No file can grow past that size; as good as a full disk, and works for any user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_worth_waiting_for_and_nothing_is_lost(tmp_path: Path) -> None:
    kept = loaded(tmp_path, [(1, "a", 1)])
    with full_disk(100), pytest.raises(WarehouseUnreachable, match="cannot be used"):
        kept.commit(transaction(1, [(2, "b", 1, 1)]))
    kept.recover()
    kept.commit(transaction(1, [(2, "b", 1, 1)]))
    with full_disk(100), pytest.raises(WarehouseUnreachable, match=r"views.v: cannot be used"):
        kept.fold()
    files = len(list((tmp_path / "views" / "v").glob("*.parquet")))
    kept.fold()
    kept.commit(transaction(1))
    assert content(WarehouseReader(tmp_path)) == Counter({(1, "a"): 1, (2, "b"): 1})
    assert len(list((tmp_path / "views" / "v").glob("*.parquet"))) == files + 1
    with full_disk(0), pytest.raises(WarehouseUnreachable):
        kept.mark_inexact("v", "why")
    assert kept.inexact() == {}
    ids = pa.table({"id": list(range(20_000)), "_count": [1] * 20_000})
    with full_disk(100), pytest.raises(WarehouseUnreachable), Consolidator(ids.schema, limit_rows=10) as bag:
        bag.add(ids)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), WarehouseUnreachable),
        (PermissionError(errno.EACCES, "Permission denied"), WarehouseUnreachable),
        (DeltaError("Generic LocalFileSystem error: Unable to copy: Busy (os error 16)"), WarehouseUnreachable),
        (DeltaError("Json error: unexpected 'o'"), WarehouseError),
        (FileNotFoundError("Object at location x not found\n↳ No such file or directory (os error 2)"), WarehouseError),
        (pa.ArrowInvalid("Not a Parquet file"), WarehouseError),
    ],
)
def test_faults_that_may_pass_are_told_from_those_that_stay(error: Exception, kind: type[WarehouseError]) -> None:
    with pytest.raises(WarehouseError) as told, storage(Path("views/v")):
        raise error
    assert type(told.value) is kind


def test_errors_cross_process_borders_whole() -> None:
    for kind in (SourceUnreachable, NegativeCount):
        error = kind([Problem("a", "b", "c"), Problem("d", "e")])
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind and copy.problems == error.problems and str(copy) == str(error)


def test_a_negative_count_is_no_fault_of_the_disk(tmp_path: Path) -> None:
    view = ViewTable(tmp_path / "v", timedelta(days=7))
    view.load(STATE, "SELECT", [rows(STATE, [(1, "a", 1)])], 0)
    with pytest.raises(NegativeCount) as told:
        view.fold(rows(STATE, [(1, "a", -2)]), 1)
    assert not isinstance(told.value, WarehouseUnreachable)


def test_a_warehouse_that_cannot_be_written_is_told_before_anything_is_made(tmp_path: Path) -> None:
    Layout(tmp_path / "a" / "b", "all").require_writable()
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o555)
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)  # what is forbidden to others is not to root
    try:
        for folder in (tmp_path, tmp_path / "a" / "b"):
            with pytest.raises(WarehouseError, match=f"{folder}: cannot be written"):
                Layout(folder, "all").require_writable()
    finally:
        os.seteuid(me)


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_job_writes_nothing_into_the_place_of_a_warehouse_that_was_moved_away(
    tmp_path: Path, made_anew: bool
) -> None:
    root = tmp_path / "w"
    Layout(root, "all").id()
    warehouse = loaded(root)
    root.rename(tmp_path / "away")
    if made_anew:
        Layout(root, "all").id()
        loaded(root)
    there = sorted(root.rglob("*"))
    with pytest.raises(
        WarehouseError, match="w: was moved away, or made anew, while the job was running; start the job"
    ):
        warehouse.commit(transaction(1, [(1, "b", 1, 1)]))
    assert sorted(root.rglob("*")) == there
    with pytest.raises(WarehouseError, match="was moved away"):
        warehouse.fold()
