"""What a PostgreSQL snapshot includes: by visibility, with xids that the log tells in 32 bits only."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from viewkeeper.managers.sources.postgres_snapshot import PgSnapshot

EPOCH = 2**32


def includes(text: str, *xids: int) -> list[bool]:
    return list(PgSnapshot.parse(text).includes(np.array(xids, np.int64)))


def test_a_snapshot_includes_what_is_over_and_nothing_that_runs_or_comes_later() -> None:
    assert includes("10:20:10,15", 9, 10, 11, 14, 15, 16, 19, 20, 21) == [
        True, False, True, True, False, True, True, False, False,
    ]  # fmt: skip


def test_a_snapshot_without_running_transactions_includes_everything_before_its_end() -> None:
    assert includes("20:20:", 3, 19, 20) == [True, True, False]


def test_xids_of_the_epoch_before_are_included_just_after_the_counter_wrapped() -> None:
    end = EPOCH + 5
    assert includes(f"{end}:{end}:", EPOCH - 1, 3, 4, 5, 6) == [True, True, True, False, False]


def test_xids_of_the_epoch_to_come_are_not_included_just_before_the_counter_wraps() -> None:
    end = 3 * EPOCH - 2
    assert includes(f"{end}:{end}:", EPOCH - 3, EPOCH - 2, EPOCH - 1, 3, 4) == [True, False, False, False, False]


def test_running_transactions_on_both_sides_of_an_epoch_are_told_apart() -> None:
    snapshot = f"{2 * EPOCH - 3}:{2 * EPOCH + 9}:{2 * EPOCH - 3},{2 * EPOCH - 1},{2 * EPOCH + 4}"
    asked = [EPOCH - 4, EPOCH - 3, EPOCH - 2, EPOCH - 1, 3, 4, 5, 8, 9]
    assert includes(snapshot, *asked) == [True, False, True, False, True, False, True, True, False]


@pytest.mark.parametrize("epoch", [0, 1, 2, 7, 1000])
def test_oracle_visibility_of_widened_xids(epoch: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(200):
        xmax = max(100, epoch * EPOCH + rng.choice([rng.randrange(-50, 50), rng.randrange(EPOCH)]))
        xmin = xmax - rng.randrange(0, 60)
        running = tuple(sorted(rng.sample(range(xmin, xmax), min(3, xmax - xmin))))
        wide = [x for x in (xmax + rng.randrange(-100, 100) for _ in range(30)) if x >= 3]
        snapshot = PgSnapshot(xmin, xmax, running)
        told = snapshot.includes(np.array([x % EPOCH for x in wide], np.int64))
        assert list(told) == [x < xmin or (x < xmax and x not in running) for x in wide], (snapshot, wide)


def test_a_snapshot_is_written_as_postgresql_writes_it_and_crosses_processes() -> None:
    for text in ("10:20:10,15", "20:20:", f"{EPOCH * 5}:{EPOCH * 5 + 1}:{EPOCH * 5}"):
        assert str(PgSnapshot.parse(text)) == text
        assert pickle.loads(pickle.dumps(PgSnapshot.parse(text))) == PgSnapshot.parse(text)


@pytest.mark.parametrize("text", ["", "1:2", "a:b:", "1:2:3,", "1:2:,3", "1:2:3 "])
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no snapshot"):
        PgSnapshot.parse(text)


def test_a_snapshot_of_no_updates_includes_none() -> None:
    assert includes("10:20:10") == []
