"""Who writes into a view topic is judged by the offsets of our own messages."""

from __future__ import annotations

import pytest

from viewkeeper.errors import UsageError
from viewkeeper.warehouse.topics import ViewTopics


@pytest.fixture
def topics() -> ViewTopics:
    return ViewTopics({"bootstrap.servers": "127.0.0.1:1"}, "w", {"v": "view.v"})


def test_messages_that_follow_one_another_are_ours_alone(topics: ViewTopics) -> None:
    topics._note("view.v", [0, 1, 2])
    topics._note("view.v", [4, 5])  # 3 is the end of the transaction before
    topics.require_alone()


@pytest.mark.parametrize("offsets", [[5], [4, 6]], ids=["between transactions", "inside one"])
def test_a_message_between_ours_is_somebody_elses(topics: ViewTopics, offsets: list[int]) -> None:
    topics._note("view.v", [0, 1, 2])
    topics._note("view.v", offsets)
    with pytest.raises(UsageError, match="another job writes into it too"):
        topics.require_alone()


def test_an_offset_that_a_repeated_try_does_not_learn_accuses_nobody(topics: ViewTopics) -> None:
    topics._note("view.v", [0, 1, 2])
    topics._note("view.v", [4, -1001])
    topics._note("view.v", [7])
    topics.require_alone()
