"""``verify --level``: the stored warehouse is judged against the sources' past, and damage is found where it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Writers
from tests.e2e.shop import TABLES, VIEWS, WRITES
from tests.e2e.test_lost_history import maintain_all, open_and_close, opened
from viewkeeper import cli

pytestmark = [pytest.mark.e2e, pytest.mark.long]

Verify = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """Runs the command in this process: exit code, output, errors."""

    def run(world: Installation, *arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["verify", str(world.conf), *arguments])
        return code, *capsys.readouterr()

    return run


def changes(world: Installation, view: str) -> DeltaTable:
    return DeltaTable(world.folder / "warehouse" / "changes" / view)


def updates_of(world: Installation, view: str) -> list[int]:
    """The updates that changed a view, in order."""
    return sorted(set(changes(world, view).to_pyarrow_table()["_update"].to_pylist()))


def fold(world: Installation) -> None:
    with opened(world) as keeper:
        keeper.finish()


def test_under_concurrent_writers_the_default_algorithm_is_complete_and_damage_is_found(
    install: Install, verify: Verify
) -> None:
    world = install(TABLES, VIEWS)
    world.done("init")
    with world.capturing():
        job = world.start("run")
        world.write("crm", "DELETE FROM customers WHERE id = 5")
        world.await_cut(0, job)
        with Writers(world, seed=4, writes=WRITES) as writers:
            writers.wait_for(60)
            world.await_cut(2, job)
            assert world.done("verify", "cities", "--level", "complete").code == 0
            writers.wait_for(60)
        world.await_position(job)
        assert job.terminate().code == 0
    last = world.cut().last_update

    code, out, err = verify(world, "--level", "complete")
    assert (code, err) == (0, "")
    said = out.splitlines()
    assert [line.partition(":")[0] for line in said] == [*VIEWS, "all views together"]
    assert all(f": complete from update 0 to {last}, cut " in line for line in said)
    assert verify(world, "overview", "--level")[1].startswith("overview: complete from update 0")
    assert verify(world, "overview", "--level", "complete-7", "--since", "3")[0] == 0

    touched = updates_of(world, "overview")
    damaged = touched[len(touched) // 2]
    changes(world, "overview").delete(f"_update = {damaged}")
    code, out, _ = verify(world, "overview", "--level", "complete")
    assert code == 1
    assert f"the first to differ is the state after update {damaged} (" in out
    bare = out.replace("not complete", "not convergent").replace("\n", "; less than promised: complete\n", 1)
    assert verify(world, "overview", "--level")[:2] == (1, bare)
    assert verify(world, "picking", "--level", "complete")[0] == 0


CUSTOMERS = {
    "crm": ["CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)"],
    "shop": ["CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER)"],
}
JOINED = {"sold": "SELECT o.id, c.name FROM shop.orders o JOIN crm.customers c ON c.id = o.customer"}


@pytest.fixture
def shop(install: Install) -> Installation:
    """Three customers, then five updates that change the view: their orders, and new names of two of them."""
    world = install(CUSTOMERS, JOINED)
    open_and_close(world)
    with world.capturing():
        write(world, "crm", *(f"INSERT INTO customers VALUES ({i}, 'c{i}')" for i in (1, 2, 3)))
        for i in (1, 2, 3):
            write(world, "shop", f"INSERT INTO orders VALUES ({i}, {i})")
        for i in (1, 2):
            write(world, "crm", f"UPDATE customers SET name = 'new{i}' WHERE id = {i}")
    maintain_all(world)
    assert updates_of(world, "sold") == [2, 3, 4, 5, 6]
    return world


def write(world: Installation, source: str, *statements: str) -> None:
    """One transaction, and so one update, because capture has sent it before the next."""
    world.write(source, *statements)
    eventually(lambda: world.delivered(source), PATIENCE, f"{source} is delivered")


def test_a_change_that_was_lost_after_the_view_was_folded_is_named(shop: Installation, verify: Verify) -> None:
    fold(shop)
    assert verify(shop, "--level", "complete")[0] == 0
    changes(shop, "sold").delete("_update = 4")
    # The third order now seems to come last, which some schedule would allow, but not that of the numbers.
    code, out, _ = verify(shop, "--level", "strong")
    assert code == 1 and out.startswith("sold: weak, not strong, ")
    assert "sold: load and stored changes do not add up to the view as it is stored at cut" in out
    assert "the first to differ is the state after update 4 (shop, transaction " in out
    missing = '    −1 sold {"id":3,"name":"c3"}\n    (+ '
    assert out.count("    −1 sold ") == 2 and f"{missing}the warehouse" in out and f"{missing}the sum holds" in out
    assert verify(shop, "--level")[0] == 1
    assert verify(shop)[0] == 0


def test_a_skipped_update_is_strong_and_named(shop: Installation, verify: Verify) -> None:
    # As a batching algorithm would have stored it: updates 3 and 4 in one go.
    changes(shop, "sold").update(predicate="_update = 3", updates={"_update": "4"})
    code, out, _ = verify(shop, "--level", "complete")
    assert code == 1
    assert out.startswith("sold: strong, not complete, from update 0 to 6")
    assert "the source state after update 3 (shop, transaction " in out and "is skipped" in out
    assert verify(shop, "--level", "strong")[0] == 0
    code, out, _ = verify(shop, "--level")
    assert code == 1, "strong is less than the default algorithm promises"
    assert out.splitlines()[0].endswith("; less than promised: complete")
    assert verify(shop, "--level", "complete-2")[0] == 0
    assert verify(shop, "--level", "complete-3")[0] == 1


def test_an_altered_row_is_found(shop: Installation, verify: Verify) -> None:
    changes(shop, "sold").update(predicate="_update = 2", updates={"name": "'wrong'"})
    code, out, _ = verify(shop, "--level", "complete")
    assert code == 1
    assert "the view as it is stored at cut" in out.splitlines()[1]
    assert "the first to differ is the state after update 2 (shop, transaction " in out
    assert '    +1 sold {"id":1,"name":"wrong"}\n' in out and '    −1 sold {"id":1,"name":"c1"}\n' in out


def test_a_view_that_was_added_later_is_judged_from_its_load(shop: Installation, verify: Verify) -> None:
    shop.views["named"] = "SELECT name FROM crm.customers"
    shop.configure()
    open_and_close(shop)
    with shop.capturing():
        write(shop, "crm", "DELETE FROM customers WHERE id = 3")
    maintain_all(shop)
    code, out, _ = verify(shop, "--level", "complete")
    assert code == 0
    assert [line.partition(", cut")[0] for line in out.splitlines()] == [
        "sold: complete from update 0 to 7",
        "named: complete from update 6 to 7",
        "all views together: complete from update 6 to 7",
    ]
    code, _, err = verify(shop, "named", "--level", "--since", "5")
    assert code == 2 and err.count("\n") == 1
    assert "views.named: update 5 came before its load; the first is --since 6" in err
    code, _, err = verify(shop, "--level", "--since", "99")
    assert code == 2 and "there is no update 99; the newest is 7" in err


@pytest.fixture
def steps(install: Install) -> Installation:
    """A view that is kept in steps of many updates beside one that shows each: cuts after updates 2, 5 and 8."""
    world = install(PRICED, {"sold": SOLD, "every": SOLD})
    world.kept_by = {"sold": {"algorithm": "t_strobe"}}
    world.configure()
    open_and_close(world)
    with world.capturing():
        write(world, "crm", "INSERT INTO customers VALUES (1, 'c1')")
        write(world, "shop", "INSERT INTO orders VALUES (1, 1, 19.90)")
    maintain_all(world)
    for i in (2, 5):
        with world.capturing():
            for order in range(i, i + 3):
                write(world, "shop", f"INSERT INTO orders VALUES ({order}, 1, 5)")
        maintain_all(world)
    assert [cut.last_update for cut in world.reader().cuts(0, 9)] == [0, 2, 5, 8]
    assert updates_of(world, "sold") == [2, 5, 8] and updates_of(world, "every") == list(range(2, 9))
    return world


PRICED = {
    "crm": ["CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)"],
    "shop": ["CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, price DECIMAL(8,2))"],
}
SOLD = "SELECT o.id, c.id AS customer, o.price FROM shop.orders o JOIN crm.customers c ON c.id = o.customer"


def test_a_judgement_that_would_begin_inside_a_step_begins_at_the_cut_before_it(
    steps: Installation, verify: Verify
) -> None:
    for since, begin in ((2, "2"), (3, "2, the last cut before 3,"), (7, "5, the last cut before 7,"), (8, "8")):
        code, out, err = verify(steps, "--level", "--since", str(since))
        sold, every, together = (line.partition(", cut")[0] for line in out.splitlines() if line[0] != " ")
        assert (code, err) == (0, "")
        reached = "complete" if since == 8 else "strong, not complete,"
        assert sold == f"sold: {reached} from update {begin} to 8"
        assert every == f"every: complete from update {since} to 8"
        assert together == f"all views together: {reached} from update {begin} to 8"


def test_if_the_messages_before_a_step_are_gone_a_cut_after_it_is_offered(steps: Installation, verify: Verify) -> None:
    fourth = steps.reader().updates(5, 5)["offset"][0].as_py()
    admin = AdminClient(steps.broker.client())
    for future in admin.delete_records([TopicPartition(steps.topics["shop"], 0, fourth)]).values():
        future.result(30)
    assert "judge a shorter past with --since 4" in verify(steps, "--level", "--since", "3")[2]
    assert verify(steps, "every", "--level", "--since", "4")[0] == 0
    code, out, err = verify(steps, "--level", "--since", "4")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "no longer holds all updates after 2, the last cut before 4, and sold is not as the sources were" in err
    assert err.endswith("; judge from a cut with --since 5\n")
    assert verify(steps, "--level", "--since", "5")[0] == 0


def test_without_a_level_each_view_must_reach_its_promise(steps: Installation, verify: Verify) -> None:
    code, out, _ = verify(steps, "--level")
    promises = [line.rpartition("; ")[2] for line in out.splitlines() if line[0] != " "]
    assert (code, promises) == (0, ["promised: strong", "promised: complete", "promised: strong"])
    steps.kept_by = {"sold": {"algorithm": "complete_n", "complete_n": 3}}
    steps.configure()
    code, out, _ = verify(steps, "sold", "--level")
    assert code == 1 and out.splitlines()[0].endswith("; less than promised: complete-3")


def test_the_rows_that_are_shown_are_those_of_the_state_that_is_wrong(steps: Installation, verify: Verify) -> None:
    changes(steps, "sold").update(predicate="_update = 5 AND id = 2", updates={"price": "1.25"})
    code, out, _ = verify(steps, "--level")
    assert code == 1
    rows = [
        '    +1 sold {"id":2,"customer":1,"price":"1.25"}',
        '    −1 sold {"id":2,"customer":1,"price":"5.00"}',
        "    (+ the warehouse holds too many, − too few)",
    ]
    sold, _, together = (out.replace("\nevery", "\0every").replace("\nall", "\0all")).split("\0")
    assert sold.splitlines()[1:5] == ["  the view as it is stored at cut 3 is not that of the sources:", *rows]
    assert "the first to differ is the state after update 5 (shop, transaction " in sold.splitlines()[5]
    stored = "  the state of the views as they are stored at cut 3 is not that of the sources:"
    assert together.splitlines()[1:5] == [stored, *rows]
    assert verify(steps)[1].splitlines()[1:3] == [line.replace(" sold", "")[2:] for line in rows[:2]]


def test_updates_that_the_topics_no_longer_hold_are_said_and_a_shorter_past_is_offered(
    shop: Installation, verify: Verify
) -> None:
    topic = shop.topics["shop"]
    third = shop.reader().updates(4, 4)["offset"][0].as_py()
    admin = AdminClient(shop.broker.client())
    for future in admin.delete_records([TopicPartition(topic, 0, third)]).values():
        future.result(30)
    code, out, err = verify(shop, "--level", "complete")
    assert (code, out) == (2, "")
    assert f"topic {topic}: no longer holds updates that came after 0" in err
    assert err.endswith("judge a shorter past with --since 3\n") and err.count("\n") == 1
    assert verify(shop, "--level", "complete", "--since", "3")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--level", "perfect"], "argument --level: must be complete, complete-N"),
        (["--level", "complete-0"], "argument --level: must be complete, complete-N"),
        (["--since", "1"], "--since is given without --level"),
        (["nothing", "--level"], "has no view nothing"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_exit_2(
    install: Install, verify: Verify, arguments: list[str], said: str
) -> None:
    code, out, err = verify(install(CUSTOMERS, JOINED), *arguments)
    assert (code, out) == (2, "")
    assert said in err and err.count("\n") == 1
