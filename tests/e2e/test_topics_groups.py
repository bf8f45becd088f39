"""View topics of several groups: they are filled side by side, and a view that moves goes on in its new group."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SharedBroker
from tests.core.test_warehouse_groups import at, load, opened
from viewkeeper.warehouse.topics import ViewTopics
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.e2e


def seen(broker: SharedBroker, topic: str) -> list[tuple[str, int]]:
    messages: list[dict[str, Any]] = [json.loads(message.value()) for message in broker.messages(topic)]
    return [("seal", m["sealed"]) if "sealed" in m else ("update", m["update"]) for m in messages]


def grown(root: Path, group: str, view: str, updates: int) -> Warehouse:
    """A group with one view, and a cut for each update."""
    warehouse = opened(root, group)
    load(warehouse, view, 1, 0)
    warehouse.commit(at(0))
    for k in range(1, updates + 1):
        warehouse.commit(at(k, first=k, **{view: 1}))
    return warehouse


def test_groups_publish_at_the_same_time_and_fence_nobody_off(broker: SharedBroker, tmp_path: Path) -> None:
    kept = {group: grown(tmp_path, group, f"v_{group}", 1) for group in ("all", "eu", "us")}
    names = {group: broker.new_topic("view") for group in kept}
    topics = {
        group: ViewTopics(broker.client(), warehouse.id(), {f"v_{group}": names[group]}, group=group)
        for group, warehouse in kept.items()
    }

    def publish(group: str) -> None:
        warehouse = kept[group]
        topics[group].catch_up(warehouse)
        for k in range(2, 12):
            topics[group].publish_stored(warehouse, warehouse.commit(at(k, first=k, **{f"v_{group}": 1})))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(publish, kept))
    expected = [("seal", 0), *(m for k in range(1, 12) for m in (("update", k), ("seal", k)))]
    assert all(seen(broker, topic) == expected for topic in names.values())


@pytest.mark.parametrize("far", [2, 6, 20])
def test_a_view_that_moved_gets_every_cut_of_its_new_group(broker: SharedBroker, tmp_path: Path, far: int) -> None:
    """Whether the former group's last seal has a smaller, a common or a larger number than the new group's cuts."""
    topic = broker.new_topic("view")
    a, b = grown(tmp_path, "a", "v", far), grown(tmp_path, "b", "w", 4)
    ViewTopics(broker.client(), a.id(), {"v": topic}, group="a").catch_up(a)
    before = seen(broker, topic)
    assert before[-1] == ("seal", far)
    a.leave(["v"])
    load(b, "v", 1, 4)
    b.commit(at(4))  # cut 5, which nobody sends before the job is killed
    for k in (5, 6):
        b.commit(at(k, first=k, v=1, w=1))
    topics = ViewTopics(broker.client(), b.id(), {"v": topic}, group="b")
    topics.catch_up(b)
    expected = [*before, ("seal", 5), ("update", 5), ("seal", 6), ("update", 6), ("seal", 7)]
    assert seen(broker, topic) == expected
    restarted = ViewTopics(broker.client(), b.id(), {"v": topic}, group="b")
    assert restarted.catch_up(b) == 0 and seen(broker, topic) == expected
