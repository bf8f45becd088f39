"""Transactions over several sources: their parts become one update, whatever comes in between.

Nobody captures these sources: the tests send what their change logs tell, and name the transaction.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation
from tests.e2e.oracle import Oracle, by_number, whole_updates
from tests.e2e.test_lost_history import install_capture, open_and_close, opened
from tests.scale import scaled
from viewkeeper import cli
from viewkeeper.capture.update_pieces import encode_updates
from viewkeeper.errors import UsageError
from viewkeeper.job import whole_transactions
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.sources import sqlite_log
from viewkeeper.queue import consumer

pytestmark = pytest.mark.e2e

TABLES = {
    "shop": ["CREATE TABLE r (id INTEGER PRIMARY KEY, n INTEGER)", "INSERT INTO r VALUES (1, 0), (2, 0)"],
    "crm": ["CREATE TABLE s (id INTEGER PRIMARY KEY, n INTEGER)", "INSERT INTO s VALUES (1, 0), (2, 0)"],
}
# Section 6.2: V1 = R, V2 = S.
V1 = {"v1": "SELECT id, n FROM shop.r"}
V2 = {"v2": "SELECT id, n FROM crm.s"}
BOTH = {"both": "SELECT r.id, r.n AS r, s.n AS s FROM shop.r r JOIN crm.s s ON r.id = s.id"}
SPANNED = ["shop", "crm"]


class Sender:
    """Writes to the databases; each write's message is sent when the test says so, in the order of the writes."""

    def __init__(self, world: Installation):
        self.world = world
        self.outbox: dict[str, list[dict[str, Any]]] = {source: [] for source in world.tables}

    def write(
        self, source: str, *statements: str, part_of: str | None = None, sources: Sequence[str] = SPANNED
    ) -> None:
        """One transaction, or a source's part of one."""
        with closing(self.world.connect(source)) as db:
            message = orjson.loads(_written(db, source, statements))
        message["global_txn"] = None if part_of is None else {"id": part_of, "sources": list(sources)}
        self.outbox[source].append(message)

    def send(self, source: str, count: int | None = None) -> None:
        """Sends the first of the messages that were not sent yet, or all."""
        messages, self.outbox[source] = (
            self.outbox[source][:count],
            self.outbox[source][len(self.outbox[source][:count]) :],
        )
        self.world.broker.send(self.world.topics[source], *map(orjson.dumps, messages), key=source)

    def say(self, source: str, *statements: str, part_of: str | None = None) -> None:
        """Writes and sends."""
        self.write(source, *statements, part_of=part_of)
        self.send(source)


def _written(db: sqlite3.Connection, source: str, statements: Sequence[str]) -> bytes:
    """Does it, and gives the message that capture would send."""
    since = sqlite_log.last_id(db)
    db.execute("BEGIN IMMEDIATE")
    for statement in statements:
        db.execute(statement)
    db.execute("COMMIT")
    (columns,) = db.execute("SELECT count(*) FROM pragma_table_info(?)", (sqlite_log.LOG,)).fetchone()
    width = (columns - 3) // 2
    names = ", ".join([f"b{i}" for i in range(width)] + [f"a{i}" for i in range(width)])
    rows = db.execute(
        f"SELECT id, relation, op, {names} FROM {sqlite_log.LOG} WHERE id > ? AND op <> 'boundary' ORDER BY id",
        (since,),
    )
    state = sqlite_log.read_state(db, f"source {source}")
    (update,) = encode_updates(source, rows, state.tables, width)
    (message,) = update.messages()
    return message


def take(world: Installation, keeper: Keeper) -> bool:
    """Everything that the topics hold by now, as one batch; tells whether that took a cut."""
    messages = [
        {"topic": topic, "offset": m.offset(), "value": m.value(), "timestamp": m.timestamp()[1]}
        for topic, inlet in keeper.queue.inlets.items()
        for m in world.broker.messages(topic, inlet.offset)
    ]
    return keeper.maintain(pa.Table.from_pylist(messages, consumer.MESSAGES))


def maintain(world: Installation) -> bool:
    with opened(world) as keeper:
        return take(world, keeper)


def rows(world: Installation, view: str, update: int | None = None) -> dict[int, int]:
    """A view's ids, each with its number."""
    return {r["id"]: r["n"] for r in world.reader().read(view, update=update).read_all().to_pylist()}


def numbered(world: Installation) -> list[list[str]]:
    """Per update number the transactions that share it: the ids of global ones, else the sources."""
    sent = {source: whole_updates(world.messages(source)) for source in world.tables}
    updates = by_number(world.reader().updates(1, world.cut().last_update).to_pylist())
    named = [[(u["source"], sent[u["source"]][u["offset"]]["global_txn"]) for u in each] for each in updates.values()]
    return [sorted({part["id"] if part else source for source, part in each}) for each in named]


def check_whole(world: Installation) -> None:
    """Each transaction has one number for all of its parts, or was loaded with all of them."""
    sent = {source: whole_updates(world.messages(source)) for source in world.tables}
    number_of = {(u["source"], u["offset"]): u["_update"] for u in world.reader().updates(1, 10**9).to_pylist()}
    parts: dict[str, list[tuple[str, int]]] = {}
    for source, messages in sent.items():
        for offset, message in messages.items():
            if message["global_txn"]:
                parts.setdefault(message["global_txn"]["id"], []).append((source, number_of.get((source, offset), 0)))
    for transaction, found in parts.items():
        assert len({number for _, number in found}) == 1, f"{transaction} is torn: {found}"
        assert len({source for source, _ in found}) == 2 or found[0][1] == 0, f"{transaction} is not whole: {found}"


@pytest.fixture
def world(install: Install) -> Installation:
    return install(TABLES, {**V1, **V2, **BOTH}, global_txn=[SPANNED], global_txn_patience="1s")


def test_oracle_parts_wait_for_each_other_and_what_comes_after_them_waits_too(world: Installation) -> None:
    oracle = Oracle(world)
    open_and_close(world)
    sender = Sender(world)
    with opened(world) as keeper:
        sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", part_of="G1")
        sender.say("shop", "INSERT INTO r VALUES (3, 7)")
        assert not take(world, keeper) and world.cut().cut == 0
        sender.say("crm", "INSERT INTO s VALUES (3, 8)")  # crm has done nothing that others wait for
        assert take(world, keeper)
        assert numbered(world) == [["crm"]]
        assert rows(world, "v1") == {1: 0, 2: 0} and rows(world, "v2") == {1: 0, 2: 0, 3: 8}
        sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
        assert take(world, keeper)
        assert numbered(world) == [["crm"], ["G1"], ["shop"]]
        for update, n in ((1, 0), (2, 1), (3, 1)):
            assert rows(world, "v1", update)[1] == rows(world, "v2", update)[1] == n, "both parts, or neither"
        keeper.finish()
    oracle.check()
    oracle.check_ends_at_sources()
    check_whole(world)


def test_oracle_transactions_that_wait_for_each_other_in_a_cycle_become_one_number(world: Installation) -> None:
    oracle = Oracle(world)
    open_and_close(world)
    sender = Sender(world)
    sender.say("shop", "UPDATE r SET n = 1", part_of="G1")
    sender.say("shop", "INSERT INTO r VALUES (5, 5)")  # stands between the two: no order has it elsewhere
    sender.say("shop", "UPDATE r SET n = 2", part_of="G2")
    sender.say("crm", "UPDATE s SET n = 2", part_of="G2")
    with opened(world) as keeper:
        assert not take(world, keeper)
        sender.say("crm", "UPDATE s SET n = 1", part_of="G1")
        sender.say("crm", "DELETE FROM s WHERE id = 2")
        assert take(world, keeper)
    assert numbered(world) == [["G1", "G2", "shop"], ["crm"]]
    assert set(rows(world, "v1", 1).values()) == {2} and set(rows(world, "v2", 1).values()) == {1}
    oracle.check()
    oracle.check_ends_at_sources()


def test_oracle_a_kill_while_parts_wait_loses_nothing_and_one_that_never_completes_is_reported(
    world: Installation,
) -> None:
    oracle = Oracle(world)
    world.done("init")
    sender = Sender(world)
    job = world.start("run")
    sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", "INSERT INTO r VALUES (4, 1)", part_of="G1")
    sender.say("shop", "INSERT INTO r VALUES (3, 7)")
    sender.say("crm", "INSERT INTO s VALUES (3, 8)")
    world.await_cut(0, job)
    late = "transaction G1 of shop waits since 1 s for its part of crm"
    eventually(lambda: late in job.err.read_text(), PATIENCE, "the missing part is reported")
    told = orjson.loads(world.done("status", "--json").out)
    assert told["groups"]["all"]["waiting"].startswith("transaction G1 of shop waits since")
    assert told["groups"]["all"]["unnumbered"] == 2 and told["groups"]["all"]["trouble"]
    assert "transaction G1 of shop" in world.done("status").out
    job.kill()
    assert numbered(world) == [["crm"]]

    ended = world.run("run", "--until-idle")
    assert ended.code == 3 and len(ended.errors) == 1, ended.err
    assert "transaction G1 of shop waits" in ended.errors[0] and "part of crm; send the missing part" in ended.errors[0]
    assert numbered(world) == [["crm"]]

    sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
    world.done("run", "--until-idle")
    assert numbered(world) == [["crm"], ["G1"], ["shop"]]
    oracle.check()
    oracle.check_ends_at_sources()
    world.done("verify")
    assert "all views together: complete" in world.done("verify", "--level").out


@pytest.fixture
def captured(world: Installation) -> Iterator[tuple[Oracle, Sender]]:
    """Nothing is loaded, but the databases log what they do and the topics are there."""
    oracle = Oracle(world)
    world.broker.create(*(world.topics[source] for source in world.tables))
    install_capture(world)
    yield oracle, Sender(world)


def test_oracle_a_first_load_that_would_show_one_part_takes_it_out_again(
    world: Installation, captured: tuple[Oracle, Sender]
) -> None:
    oracle, sender = captured
    sender.say("shop", "INSERT INTO r VALUES (8, 8)", part_of="G0")
    sender.say("crm", "INSERT INTO s VALUES (8, 8)", part_of="G0")  # whole: it is loaded
    sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", "DELETE FROM r WHERE id = 2", part_of="G1")
    sender.say("shop", "UPDATE r SET n = 9 WHERE id = 1")
    open_and_close(world)
    assert rows(world, "v1") == {1: 0, 2: 0, 8: 8} and rows(world, "v2") == {1: 0, 2: 0, 8: 8}
    assert not maintain(world)
    assert cli.main(["verify", str(world.conf)]) == 0
    sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
    assert maintain(world)
    assert numbered(world) == [["G1"], ["shop"]]
    assert rows(world, "v1", 1) == {1: 1, 8: 8} and rows(world, "v2", 1)[1] == 1
    oracle.check()
    oracle.check_ends_at_sources()
    check_whole(world)


def to_the_end(world: Installation, keeper: Keeper) -> bool:
    """A batch up to where the topics end by now."""
    return keeper.maintain_to({topic: world.broker.end(topic) for topic in keeper.queue.inlets})


def test_oracle_what_waits_behind_a_transaction_is_bounded_by_reading_its_source_no_further(
    world: Installation, captured: tuple[Oracle, Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_transactions, "HELD_UPDATES", 3)
    oracle, sender = captured
    open_and_close(world)
    with opened(world) as keeper:
        shop = keeper.queue.inlets[world.topics["shop"]]
        sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", part_of="G1")
        for n in range(1, 6):
            sender.say("shop", f"UPDATE r SET n = {n} WHERE id = 2")
        assert not to_the_end(world, keeper)
        held, waiting = shop.offset, keeper.rounds.waiting
        assert waiting == 6
        assert keeper.waiting == "source shop is read no further: 6 of its updates wait behind transaction G1"
        sender.say("shop", "UPDATE r SET n = 6 WHERE id = 2")
        sender.say("shop", "UPDATE r SET n = 7 WHERE id = 2", part_of="G2")
        assert not to_the_end(world, keeper)
        assert not keeper.release()
        assert (shop.offset, keeper.rounds.waiting) == (held, waiting)
        # Its topic holds what another part waits for: so it must be read, however much waits.
        sender.say("crm", "UPDATE s SET n = 7 WHERE id = 2", part_of="G2")
        assert not to_the_end(world, keeper)
        assert shop.offset > held and keeper.rounds.waiting == 9
        sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
        assert to_the_end(world, keeper)
        assert (keeper.rounds.waiting, keeper.waiting) == (0, None)
    oracle.check()
    oracle.check_ends_at_sources()
    check_whole(world)


def test_oracle_a_backlog_behind_a_transaction_is_read_no_further_than_that_either(
    world: Installation,
    captured: tuple[Oracle, Sender],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sources that nothing waits for are read to their ends; the status names the source, and what it waits behind."""
    monkeypatch.setattr(whole_transactions, "HELD_UPDATES", 3)
    monkeypatch.setattr(consumer, "PIECE_MESSAGES", 2)
    oracle, sender = captured
    open_and_close(world)
    sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", part_of="G1")
    for n in range(1, 20):
        sender.say("shop", f"UPDATE r SET n = {n} WHERE id = 2")
    sender.say("crm", "INSERT INTO s VALUES (3, 3)")
    with opened(world) as keeper:
        assert to_the_end(world, keeper)
        assert 3 < keeper.rounds.waiting <= 3 + 2
        assert rows(world, "v2")[3] == 3
        StatusFile.of(world.folder / "warehouse").write(keeper)
        assert cli.main(["status", str(world.conf)]) == 0
        waits = f"source shop is read no further: {keeper.rounds.waiting} of its updates wait behind transaction G1"
        assert waits in " ".join(capsys.readouterr().out.split())
        sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
        assert to_the_end(world, keeper)
        assert (keeper.rounds.waiting, keeper.waiting) == (0, None)
    oracle.check()
    oracle.check_ends_at_sources()


def test_oracle_a_source_that_was_held_back_is_read_on_without_another_message(
    world: Installation, captured: tuple[Oracle, Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_transactions, "HELD_UPDATES", 1)
    oracle, sender = captured
    open_and_close(world)
    with opened(world) as keeper:
        sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", part_of="G1")
        sender.say("shop", "UPDATE r SET n = 2 WHERE id = 1")
        to_the_end(world, keeper)
        sender.say("shop", "UPDATE r SET n = 3 WHERE id = 1")
        to_the_end(world, keeper)
        assert keeper.rounds.waiting == 2 and keeper.held_back
        sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
        assert keeper.maintain_to({world.topics["crm"]: world.broker.end(world.topics["crm"])})
        assert (keeper.rounds.waiting, keeper.cut.last_update) == (0, 3)
    oracle.check()
    oracle.check_ends_at_sources()


def test_oracle_a_view_that_is_added_after_a_load_without_a_part_lacks_all_of_it(
    world: Installation, captured: tuple[Oracle, Sender]
) -> None:
    """The part changes two rows: the load stands before both of them, not between."""
    oracle, sender = captured
    both = world.views.pop("both")
    world.configure()
    sender.say("crm", "INSERT INTO s VALUES (3, 3)")
    sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", "DELETE FROM r WHERE id = 2", part_of="G1")
    open_and_close(world)
    world.views["both"] = both
    world.configure()
    open_and_close(world)
    assert oracle.read("both") == {(1, 0, 0): 1, (2, 0, 0): 1}
    assert cli.main(["verify", str(world.conf)]) == 0
    sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
    assert maintain(world)
    oracle.check()
    oracle.check_ends_at_sources()


def test_oracle_a_load_waits_for_what_its_sources_have_done_and_no_topic_tells_yet(
    world: Installation, captured: tuple[Oracle, Sender]
) -> None:
    """Only the message says whether the change is a part of something."""
    oracle, sender = captured
    sender.write("shop", "UPDATE r SET n = 1 WHERE id = 1", part_of="G1")
    sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
    sender.write("shop", "UPDATE r SET n = 2 WHERE id = 2", part_of="G2")
    loading = world.start("init")
    eventually(lambda: world.topics["view.v1"] in _topics(world), PATIENCE, "it has begun")
    sender.send("shop")
    assert loading.wait().code == 0
    assert rows(world, "v1") == {1: 1, 2: 0} and rows(world, "v2") == {1: 1, 2: 0}
    sender.say("crm", "UPDATE s SET n = 2 WHERE id = 2", part_of="G2")
    assert maintain(world)
    assert numbered(world) == [["G2"]]
    oracle.check()
    oracle.check_ends_at_sources()
    check_whole(world)


def _topics(world: Installation) -> set[str]:
    from confluent_kafka.admin import AdminClient

    return set(AdminClient(world.broker.client()).list_topics(timeout=10).topics)


def test_oracle_views_come_and_are_loaded_again_while_parts_wait(install: Install) -> None:
    world = install(TABLES, {**V1, **V2}, global_txn=[SPANNED], global_txn_patience="1h")
    oracle = Oracle(world)
    open_and_close(world)
    sender = Sender(world)
    sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", part_of="G1")
    sender.say("shop", "INSERT INTO r VALUES (3, 7)")
    sender.say("crm", "INSERT INTO s VALUES (3, 8)")
    maintain(world)
    world.views |= BOTH
    world.configure()
    open_and_close(world)  # a view that is new
    assert rows(world, "v1") == {1: 0, 2: 0}
    assert oracle.read("both") == {(1, 0, 0): 1, (2, 0, 0): 1}
    open_and_close(world, "v1")  # one that is loaded again, beside others
    assert rows(world, "v1") == {1: 0, 2: 0}
    open_and_close(world, "v1", "v2", "both")  # all of them
    assert rows(world, "v1") == {1: 0, 2: 0} and rows(world, "v2") == {1: 0, 2: 0, 3: 8}
    assert not maintain(world)
    assert cli.main(["verify", str(world.conf)]) == 0
    sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
    assert maintain(world)
    assert numbered(world) == [["crm"], ["G1"], ["shop"]]
    oracle.check()
    oracle.check_ends_at_sources()
    check_whole(world)


def test_oracle_all_views_of_a_source_are_loaded_again_while_parts_wait(
    world: Installation, captured: tuple[Oracle, Sender]
) -> None:
    """The source keeps its place in the cut, because a transaction over it and the other view's source may wait."""
    oracle, sender = captured
    open_and_close(world)
    sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1", part_of="G1")
    sender.say("crm", "INSERT INTO s VALUES (3, 8)")
    maintain(world)
    open_and_close(world, "v2", "both")
    assert rows(world, "v2") == {1: 0, 2: 0}
    sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", part_of="G1")
    assert maintain(world)
    oracle.check()
    oracle.check_ends_at_sources()
    check_whole(world)


def test_a_source_that_lost_its_history_joins_transactions_only_by_a_load_of_everything(
    world: Installation, captured: tuple[Oracle, Sender]
) -> None:
    _, sender = captured
    open_and_close(world)
    database, copy = world.database("crm"), world.folder / "copy.db"
    shutil.copy(database, copy)
    sender.say("crm", "UPDATE s SET n = 1 WHERE id = 1")
    maintain(world)
    shutil.copy(copy, database)
    with pytest.raises(UsageError, match=r"source crm joins group all.*--reload v1 v2 both'"):
        open_and_close(world, "v2", "both")
    open_and_close(world, "v1", "v2", "both")
    assert rows(world, "v2") == {1: 0, 2: 0}


def test_groups_that_the_user_tore_apart_show_their_own_parts(install: Install) -> None:
    """Each promises nothing to the other, so none waits."""
    world = install(TABLES, {**V1, **V2}, global_txn=[SPANNED], groups={"left": ["v1"], "right": ["v2"]})
    said = world.done("check").out
    assert "of a transaction over shop, crm (global_txn) each shows its own parts by itself" in said
    world.done("init")
    sender = Sender(world)
    sender.say("shop", "UPDATE r SET n = 1 WHERE id = 1", part_of="G1")
    world.done("run", "--until-idle")
    assert world.cut("left").last_update == 1 and world.cut("right").last_update == 0


@pytest.mark.parametrize("seed", range(scaled(2, 6)))
def test_oracle_any_order_of_writing_sending_handling_and_loading_keeps_transactions_whole(
    world: Installation, captured: tuple[Oracle, Sender], seed: int
) -> None:
    """Parts are written, sent and handled at any time; in between the job starts anew and views are loaded again."""
    print(f"replay: pytest {__file__} -k 'any_order and {seed}'")
    oracle, sender = captured
    rng = random.Random(seed)
    started: dict[str, list[str]] = {"shop": [], "crm": []}  # per source the transactions whose part it has not written
    table = {"shop": "r", "crm": "s"}
    loaded = False
    for step in range(40):
        source = rng.choice(SPANNED)
        change = rng.choice(("UPDATE {t} SET n = {n}", "INSERT OR REPLACE INTO {t} VALUES ({i}, {n})"))
        text = change.format(t=table[source], n=step + 100, i=rng.randrange(1, 6))
        match rng.randrange(10):
            case 0 | 1:
                sender.write(source, text)
            case 2:
                for parts in started.values():
                    parts.insert(rng.randrange(len(parts) + 1), f"G{step}")
            case 3 | 4 if started[source]:
                sender.write(source, text, part_of=started[source].pop(0))
            case 5 | 6:
                sender.send(source, 1)
            case 7 | 8 if loaded:
                maintain(world)
            case 9 if not any(sender.outbox.values()):
                open_and_close(world, *rng.sample(sorted(world.views), rng.randrange(4)))
                loaded = True
    for source, parts in started.items():
        for part in parts:
            sender.write(source, f"INSERT OR REPLACE INTO {table[source]} VALUES (9, {len(parts)})", part_of=part)
        sender.send(source)
    maintain(world)
    oracle.check()
    oracle.check_ends_at_sources()
    check_whole(world)
    assert cli.main(["verify", str(world.conf)]) == 0
