"""Space-time diagrams: what a person sees of a history."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from viewkeeper.algorithms.protocol import Op
from viewkeeper.algorithms.registry import Scenario
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.diagram import draw, legend
from viewkeeper.simulator.diagram_svg import draw_svg
from viewkeeper.simulator.evidence import fault_of
from viewkeeper.simulator.examples import EXAMPLES
from viewkeeper.simulator.history import Commit, Deliver, History, Transaction
from viewkeeper.simulator.laboratory import AnyWorld, Oracle, Subject, fitting, judged, make, replayed, subjects
from viewkeeper.simulator.narrative import Step, narrate
from viewkeeper.simulator.schedule import Faults, run_randomly
from viewkeeper.simulator.wording import bag_text, taken_text, updates_text
from viewkeeper.simulator.workload import Shape, random_workload

SVG = "{http://www.w3.org/2000/svg}"


def told(world: AnyWorld, level: Level = Level.COMPLETE) -> list[Step]:
    oracle = Oracle(world.workload)
    return narrate(world, fault_of(world, judged(world, None, oracle), level, oracle))


EXAMPLE_1 = """\
x
│  y
│  │  z
│  │  │  warehouse
│  │  │  ◆  view = ∅
│  ●  │  ┃  U1: +r2(2,3)
│  ├──┼─▶┃  U1 = +r2(2,3)
│◀─┼──┼──┨  Q1 to x: {(2,3)} ⋈ r1
○  │  │  ┃  answers Q1
├──┼──┼─▶┃  A1 = {(1,2)(2,3)}
│  │  │◀─┨  Q2 to z: {(1,2)(2,3)} ⋈ r3
●  │  │  ┃  U2: −r1(1,2)
├──┼──┼─▶┃  U2 = −r1(1,2)
│  │  │  ◆  view = ∅  with U2
│  │  ○  ┃  answers Q2
│  │  ├─▶┃  A2 = {(1,2)(2,3)(3,4)}
│  │  │  ✗  view = {(1,2,3,4)}  with U1
│  │  │  ┃  ✗ the view should be ∅ in the end"""


def test_example_1_of_strobe_is_drawn_as_the_paper_tells_it() -> None:
    world = replayed(EXAMPLES["strobe-1996-example-1"])
    assert "\n".join(map(str, draw(told(world), world.workload.sources))) == EXAMPLE_1


def test_a_state_that_was_left_out_is_said_at_the_end_if_no_state_is_to_blame() -> None:
    # Strobe takes the deletion of r2's row out of the answer to its insertion: the view never moves.
    workload = EXAMPLES["strobe-1996-example-1"].workload
    r2 = (Op("r2", (2, 3), 1), Op("r2", (2, 3), -1))
    twice = replace(workload, transactions=tuple(Transaction(f"t{i}", {"y": (op,)}) for i, op in enumerate(r2, 1)))
    events = (Commit(0), Deliver("y"), Commit(1), Deliver("y"))
    last = told(replayed(History(twice, "strobe", {}, events)))[-1]
    assert (last.text, last.wrong) == (
        "the end",
        "the view never shows {(1,2,3,4)}, the state after 0 transactions of x, 1 of y and 0 of z",
    )


def test_a_compensation_says_what_is_taken_out_and_why() -> None:
    steps = narrate(replayed(EXAMPLES["strobe-1996-example-3"]))
    said = [step.text for step in steps if step.kind == "compensate"]
    assert said == ["takes out {(1,2)(2,3)(3,4)}, because of U2"]


def test_what_was_subtracted_with_a_minus_was_put_back() -> None:
    assert taken_text({((1, 2), None): -2}) == "puts back {2×(1,2)}"
    assert taken_text({((1, 2), None): 1, ((3, 4), None): -1}) == "takes out {(1,2)} and puts back {(3,4)}"


def test_a_batch_that_compensates_says_whose_answer_and_for_which_updates() -> None:
    rng = random.Random(7)
    world = make("sweep", random_workload(rng, Shape(3, 3, 4, values=2)), {})
    run_randomly(world, rng)
    said = [step.text for step in narrate(world) if step.kind == "compensate"]
    assert said == [
        "compensates what s3 answered, for the batch of U1",
        "compensates what s3 answered, for the batch of U2…U4",
    ]


def test_the_legend_names_the_marks_that_are_there() -> None:
    steps = told(replayed(EXAMPLES["strobe-1996-example-4"]))
    assert legend(steps) == "● commits   ├▶ arrives   ◆ the view   ✗ wrong"


@pytest.mark.parametrize("subject", subjects(), ids=str)
def test_every_history_can_be_drawn_with_faults_and_all(subject: Subject) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        shape = fitting(subject, Shape(3, 3, 6, Scenario.LOCAL if seed % 2 else Scenario.SINGLE))
        assert shape is not None
        world = make(subject.name, random_workload(rng, shape), subject.options)
        run_randomly(world, rng, Faults(0.1, 0.1, 0.1))
        steps, sources = told(world), world.workload.sources
        assert max(len(str(line)) for line in draw(steps, sources)) <= 100, f"seed {seed}"
        ElementTree.fromstring(draw_svg(steps, sources, f"{subject} <&>"))


def test_messages_are_arrows_from_where_they_were_sent() -> None:
    world = replayed(EXAMPLES["sweep-1997-figure-5"])
    steps = {step.index: step for step in told(world)}
    for step in steps.values():
        if step.kind in ("update", "answer"):
            assert step.sent is not None and steps[step.sent].at_source and steps[step.sent].source == step.source
        if step.kind == "evaluate":
            assert step.sent is not None and steps[step.sent].kind == "send"


def test_the_picture_marks_the_wrong_state() -> None:
    world = replayed(EXAMPLES["strobe-1996-example-1"])
    picture = draw_svg(told(world), world.workload.sources, "Example 1")
    assert picture.count('class="badbox"') == 1
    assert "✗ the view should be ∅ in" in picture


def test_labels_do_not_overlap_in_the_picture() -> None:
    world = replayed(EXAMPLES["sweep-1997-figure-5"])
    root = ElementTree.fromstring(draw_svg(told(world), world.workload.sources, "Figure 5"))
    by_line: dict[str, list[tuple[float, float]]] = {}
    for text in root.iter(f"{SVG}text"):
        if text.get("class") in ("title", "legend", "name"):
            continue
        width, x = 6.7 * len(text.text or ""), float(text.attrib["x"])
        left = x - width / 2 if text.get("text-anchor") == "middle" else x
        by_line.setdefault(text.attrib["y"], []).append((left, left + width))
    for spans in by_line.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_tall_labels_stay_below_the_legend() -> None:
    steps = [Step(0, 0.0, "commit", "s1", "t1: " + "+r1(1,2,3) " * 9, at_source=True)]
    root = ElementTree.fromstring(draw_svg(steps, ("s1", "s2"), "tall"))
    heights = [float(text.attrib["y"]) for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "middle"]
    assert len(heights) > 3 and min(heights) >= 54 + 15


def long_history() -> AnyWorld:
    rng = random.Random(7)
    world = make("strobe", random_workload(rng, Shape(3, 3, 20, values=2)), {})
    run_randomly(world, rng)
    return world


def test_a_long_history_goes_on_in_bands_below_each_other() -> None:
    world = long_history()
    root = ElementTree.fromstring(draw_svg(told(world), world.workload.sources, "long"))
    assert float(root.attrib["width"]) <= 1600
    lanes = [float(line.attrib["y1"]) for line in root.iter(f"{SVG}line")]
    assert len(lanes) > 4 and len(lanes) % 4 == 0
    assert lanes == sorted(lanes)


def test_every_message_of_a_long_history_arrives_once_and_stays_in_the_picture() -> None:
    world = long_history()
    steps = told(world)
    root = ElementTree.fromstring(draw_svg(steps, world.workload.sources, "long"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    ways = [way for way in root.iter(f"{SVG}path") if way.get("class") in ("ask", "tell")]
    assert sum("marker-end" in way.attrib for way in ways) == sum(step.sent is not None for step in steps)
    for way in ways:
        x1, y1, x2, y2 = (float(each) for each in re.findall(r"[0-9.]+", way.attrib["d"]))
        assert 0 < x1 <= x2 < width and min(y1, y2) > 0 and max(y1, y2) < height


def test_bags_are_written_in_one_order_and_long_ones_are_cut() -> None:
    assert bag_text({(2, None): 2, (1, 1): -1}) == "{−(1,1) 2×(2,NULL)}"
    assert bag_text({}) == "∅"
    assert bag_text({(i,): 1 for i in range(9)}, shown=2) == "{(0) (1) … 7 more}"
    assert updates_text([5, 1, 2, 3, 7, 8]) == "U1…U3, U5, U7, U8"
