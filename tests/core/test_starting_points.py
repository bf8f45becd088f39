"""Where sources stand when a group begins: each found by a view that would have been wrong, or have waited for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from viewkeeper.job.partial_loads import _decided
from viewkeeper.job.positions import furthest
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.job.topic_identity import TopicIdentities
from viewkeeper.messages import GlobalPart, Update


def test_a_snapshot_is_never_taken_from_before_what_was_received() -> None:
    """What lies between would be taken out of its answers twice: as their tail, and as an update that waits."""
    assert furthest({"shop": "8", "crm": "3"}, {"shop": "5", "crm": "4"}) == {"shop": "8", "crm": "4"}


@pytest.mark.parametrize(
    ("since", "held", "is_part"),
    [
        ({"shop": 0, "crm": 0}, {}, True),
        ({"shop": 2_000, "crm": 100}, {}, True),
        ({"shop": 100, "crm": 5_000}, {}, False),  # crm's part may never have been told, or before what is left of it
        ({"shop": 5_000, "crm": 0}, {}, False),
        ({"shop": 0, "crm": 0}, {"shop": 7, "crm": 1}, False),  # the newest cut holds it, whole
        ({"shop": 0, "crm": 0}, {"shop": 6, "crm": 9}, True),
        ({"shop": 0, "crm": 0}, {"shop": 7}, True),  # the cut knew nothing of crm
        ({"shop": 0, "crm": 0}, {"shop": -1, "crm": 9}, True),  # shop is not what the cut was made from
    ],
)
def test_a_part_counts_as_missing_only_if_its_message_would_have_been_read(
    since: dict[str, int], held: dict[str, int], is_part: bool
) -> None:
    update = Update("shop", "t1", 7, "shop.updates", 3, 2_000, GlobalPart("g1", frozenset({"shop", "crm"})))
    assert (_decided(update, since, held).part_of is not None) == is_part


class Restored:
    """A source that says who it is."""

    def __init__(self, history: str):
        self.history = history

    def identity(self) -> dict[str, str]:
        return {"history": self.history}

    def require_identity(self, known: dict[str, str]) -> None:
        assert known == self.identity(), "another history"


def test_a_group_that_starts_afresh_does_not_speak_for_others(tmp_path: Path) -> None:
    """Two groups share a source that is put back; one is loaded again, but the other's cuts are still of the old."""
    before: Any = {"shop": Restored("before")}
    after: Any = {"shop": Restored("after")}
    for group in ("all", "money"):
        SourceIdentities.of(tmp_path, group).remember(before)
    SourceIdentities.of(tmp_path, "money").remember(after)
    SourceIdentities.of(tmp_path, "money").require(after)
    with pytest.raises(AssertionError, match="another history"):
        SourceIdentities.of(tmp_path, "all").require(after)
    files = {TopicIdentities.of(tmp_path, {}, group).file for group in ("all", "money", "staff")}
    assert len(files) == 3
