"""Groups of views: how a configuration is split, and every way to get it wrong."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

from viewkeeper.config import Config, load_config
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import ConfigError
from viewkeeper.integrator.groups import Sharing, shared_sources, split, split_transactions

SOURCES = ("shop", "crm", "hr", "bank")


def written(folder: Path, views: Mapping[str, str], settings: str = "", sources: str = "") -> Path:
    """A configuration with four sources, views with these settings, and whatever else."""
    file = folder / "conf.yaml"
    listed = sources or "".join(f"  {name}: {{kind: sqlite, path: ./{name}.db}}\n" for name in SOURCES)
    shown = "".join(f"  {name}: {{sql: SELECT 1{more and ', ' + more}}}\n" for name, more in views.items())
    head = f'kafka: {{bootstrap: "127.0.0.1:9092"}}\nwarehouse: ./warehouse\nsources:\n{listed}views:\n{shown}'
    file.write_text(head + settings)
    return file


def plain(*views: str) -> dict[str, str]:
    return dict.fromkeys(views, "")


def problems(folder: Path, views: Mapping[str, str], settings: str = "", sources: str = "") -> list[str]:
    file = written(folder, views, settings, sources)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert caught.value.exit_code == 2
    return [str(problem).removeprefix(f"{file}: ") for problem in caught.value.problems]


def config(folder: Path, views: Mapping[str, str], settings: str = "") -> Config:
    return load_config(written(folder, views, settings))


USES = {"a": ["shop"], "b": ["shop", "crm"], "c": ["hr"], "d": ["bank", "crm"], "e": ["hr"]}


def groups(folder: Path, settings: str, **algorithms: str) -> dict[str, tuple[str, ...]]:
    views = {name: f"algorithm: {algorithms[name]}" if name in algorithms else "" for name in USES}
    return split(config(folder, views, settings), USES)


# Splits ----------------------------------------------------------------------------------------------------------


def test_left_out_all_views_are_one_group(tmp_path: Path) -> None:
    assert groups(tmp_path, "") == {"all": ("a", "b", "c", "d", "e")}


def test_auto_splits_by_shared_sources_and_names_a_group_after_its_first(tmp_path: Path) -> None:
    assert groups(tmp_path, "groups: auto\n") == {"shop": ("a", "b", "d"), "hr": ("c", "e")}


def test_auto_keeps_sources_that_a_transaction_may_span_together(tmp_path: Path) -> None:
    spanned = "groups: auto\nglobal_txn: [[hr, bank]]\n"
    assert groups(tmp_path, spanned) == {"shop": ("a", "b", "c", "d", "e")}


def test_an_auto_group_is_named_after_a_source_that_its_views_use(tmp_path: Path) -> None:
    told = config(tmp_path, plain("c"), "groups: auto\nglobal_txn: [[shop, hr]]\n")
    assert split(told, {"c": ["hr"]}) == {"hr": ("c",)}


def test_named_groups_come_as_named_and_the_rest_forms_all(tmp_path: Path) -> None:
    named = "groups: {second: [e, c], first: {views: [b], level: complete}}\n"
    found = groups(tmp_path, named)
    assert found == {"second": ("c", "e"), "first": ("b",), "all": ("a", "d")}
    assert list(found) == ["second", "first", "all"]


def test_a_group_may_be_called_all_if_no_view_is_left_over(tmp_path: Path) -> None:
    named = "groups: {all: [a, b, c], rest: [d]}\n"
    assert groups(tmp_path, named, e="convergent") == {"all": ("a", "b", "c"), "rest": ("d",), "e": ("e",)}


def test_a_view_that_promises_nothing_is_a_group_of_its_own(tmp_path: Path) -> None:
    assert groups(tmp_path, "", b="convergent") == {"all": ("a", "c", "d", "e"), "b": ("b",)}
    assert groups(tmp_path, "groups: auto\n", b="convergent") == {
        "shop": ("a",), "hr": ("c", "e"), "crm": ("d",), "b": ("b",),
    }  # fmt: skip
    assert groups(tmp_path, "groups: {x: [b]}\n", b="convergent") == {"x": ("b",), "all": ("a", "c", "d", "e")}


def test_a_view_alone_takes_another_name_if_its_own_is_taken(tmp_path: Path) -> None:
    views = {"shop": "algorithm: convergent", "a": ""}
    uses = {"shop": ["shop"], "a": ["shop"]}
    assert split(config(tmp_path, views, "groups: auto\n"), uses) == {"shop": ("a",), "shop_alone": ("shop",)}
    views = {"x": "algorithm: convergent", "a": "", "b": ""}
    uses = {"x": ["shop"], "a": ["shop"], "b": ["shop"]}
    with pytest.raises(ConfigError) as caught:
        split(config(tmp_path, views, "groups: {x: [a], x_alone: [b]}\n"), uses)
    assert [str(p).partition(": ")[2] for p in caught.value.problems] == [
        "views.x: it is a group of its own, and groups x and x_alone are there already; "
        "name a group for it: groups.<name>: [x]"
    ]


def test_only_convergent_views_need_no_group_all(tmp_path: Path) -> None:
    told = config(tmp_path, {"a": "algorithm: convergent"})
    assert split(told, {"a": ["shop"]}) == {"a": ("a",)}


def test_named_groups_that_share_a_source_are_found(tmp_path: Path) -> None:
    told = config(tmp_path, plain(*USES), "groups: {one: [a, c], two: [b], three: [d]}\n")
    assert shared_sources(told, split(told, USES), USES) == [
        Sharing(("shop",), ("one", "two")),
        Sharing(("crm",), ("two", "three")),
        Sharing(("hr",), ("one", "all")),
    ]
    told = config(tmp_path, plain(*USES), "groups: auto\n")
    assert shared_sources(told, split(told, USES), USES) == []


def test_a_view_alone_is_not_said_to_share(tmp_path: Path) -> None:
    told = config(tmp_path, {**plain(*USES), "a": "algorithm: convergent"}, "global_txn: [[shop, hr]]\n")
    assert shared_sources(told, split(told, USES), USES) == []
    assert split_transactions(told, split(told, USES), USES) == []


def test_a_transaction_that_spans_groups_is_found(tmp_path: Path) -> None:
    settings = "groups: {one: [a], two: [c, e], three: [b]}\nglobal_txn: [[shop, hr], [crm, bank], [bank, hr]]\n"
    told = config(tmp_path, plain(*USES), settings)
    assert split_transactions(told, split(told, USES), USES) == [
        Sharing(("shop", "hr"), ("one", "two", "three")),
        Sharing(("crm", "bank"), ("three", "all")),
        Sharing(("bank", "hr"), ("two", "all")),
    ]
    alike = {"a": ["shop", "hr"], "b": ["hr", "shop"]}
    told = config(tmp_path, plain(*alike), "groups: {one: [a], two: [b]}\nglobal_txn: [[shop, hr], [crm, hr]]\n")
    assert split_transactions(told, split(told, alike), alike) == [], "each group shows the whole of it"


# What the file says ----------------------------------------------------------------------------------------------


def test_what_the_file_says_of_groups_and_levels(tmp_path: Path) -> None:
    settings = "groups: {one: {views: [a], level: strong}, two: [b]}\nglobal_txn: [[shop, crm, hr]]\n"
    told = config(tmp_path, {"a": "level: complete-N", "b": "level: complete"}, settings)
    assert told.views["a"].level is Level.COMPLETE_N and told.views["b"].level is Level.COMPLETE
    assert told.groups != "auto" and told.groups["one"].level is Level.STRONG and told.groups["two"].level is None
    assert (told.global_txn, told.global_txn_patience) == ([["shop", "crm", "hr"]], timedelta(seconds=60))
    assert config(tmp_path, plain("a"), "global_txn_patience: 5m\n").global_txn_patience == timedelta(minutes=5)
    assert config(tmp_path, {"a": "level: complete_n"}).views["a"].level is Level.COMPLETE_N


# Mistakes --------------------------------------------------------------------------------------------------------


def test_every_mistake_with_groups_is_told_at_once(tmp_path: Path) -> None:
    views = {
        "orders": "algorithm: nested_sweep, level: complete",
        "people": "",
        "stock": "algorithm: convergent",
        "bills": "algorithm: complete_n",
    }
    settings = """\
groups:
  one: [orders, peopel, people, orders]
  two: {views: [people, bills], level: complete}
  three: []
  "bad name": [stock, bills]
  four: {view: [orders]}
global_txn: [[shop, crn], [shop], [shop, shop], []]
global_txn_patience: soon
"""
    complete = "sweep, sweep_sequential, sweep_sites or c_t_strobe"
    assert sorted(problems(tmp_path, views, settings)) == sorted(
        [
            "groups.three.views: is empty; fill it in",
            "groups.bad name: cannot be a name; use a letter, then letters, digits and '_'",
            "groups.four.views: is missing; add it",
            "groups.four.view: this key is not known; did you mean views?",
            "global_txn_patience: must be a duration such as 250ms, 30s, 5m, 2h or 7d, not 'soon'",
            f"views.orders.level: nested_sweep promises strong, not complete; ask for less, or use {complete}",
            "groups.one: there is no view peopel; did you mean people?",
            "groups.one: view orders stands twice; name it once",
            "groups.two: view people is already in group one; a view is in one group; take it out of one of them",
            "groups.two.level: view bills cannot serve it: complete_n promises complete-N, not complete; "
            f"ask for less, or keep the view by {complete}",
            "groups.bad name: view bills is already in group two; a view is in one group; take it out of one of them",
            "groups.bad name: view stock is kept by convergent, which promises nothing, so no other view can agree "
            "with it; take it out (it is a group of its own), or use sweep",
            "global_txn.0: there is no source crn; did you mean crm?",
            "global_txn.1: a transaction spans at least two sources; name them all, each once",
            "global_txn.2: a transaction spans at least two sources; name them all, each once",
            "global_txn.3: a transaction spans at least two sources; name them all, each once",
        ]
    )


NO_GROUPS = "groups: must be auto, or groups with their views such as {money: [accounts, transfers]}"


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("groups: automatic\n", NO_GROUPS),
        ("groups:\n", NO_GROUPS),
        ("groups: {}\n", NO_GROUPS),
        ("groups: [a]\n", NO_GROUPS),
        ("groups: {x: a}\n", "groups.x: must be a mapping, not text"),
        ("groups: {x: {views: a}}\n", "groups.x.views: must be a list, not text"),
        ("groups: {x: [1]}\n", "groups.x.views.0: must be text, not a number; put it in quotes"),
        ("groups: {x: {views: [a], level: best}}\n",
         "groups.x.level: there is no level 'best'; use one of complete, complete-N, convergent, strong, weak"),
        ("groups: {all: [b]}\n", "groups.all: views in no group form a group of this name: a; "
         "name this one otherwise, or put all views in groups"),
        ("global_txn: [shop, crm]\n", "global_txn.0: must be a list, not text"),
        ("global_txn: shop\n", "global_txn: must be a list, not text"),
        ("global_txn_patience: 0s\n", "global_txn_patience: must be longer than zero"),
    ],
)  # fmt: skip
def test_a_mistake_with_groups_names_its_place_and_remedy(tmp_path: Path, groups: str, said: str) -> None:
    assert said in problems(tmp_path, plain("a", "b"), groups)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("level: 3", "views.a.level: there is no level 3; use one of complete, complete-N, convergent, strong, weak"),
        ("level: compleet", "views.a.level: there is no level 'compleet'; did you mean complete?"),
        ("algorithm: convergent, level: convergent",
         "views.a.level: convergent promises nothing, not convergent; leave it out, or use sweep, sweep_sequential, "
         "nested_sweep, sweep_sites, refresh, complete_n, strobe, t_strobe, g_strobe, c_strobe, c_t_strobe or eca"),
        ("algorithm: refresh, level: complete_n",
         "views.a.level: refresh promises strong, not complete-N; ask for less, or use sweep, sweep_sequential, "
         "sweep_sites, complete_n or c_t_strobe"),
    ],
)  # fmt: skip
def test_a_level_that_cannot_be_had_names_those_that_can(tmp_path: Path, settings: str, said: str) -> None:
    assert problems(tmp_path, {"a": settings}) == [said]


def test_a_source_whose_messages_tell_of_no_global_transactions_is_refused(tmp_path: Path) -> None:
    sources = "  shop: {kind: postgres, url: 'postgresql://u@h/d'}\n  crm: {kind: sqlite, path: ./crm.db}\n"
    assert problems(tmp_path, plain("a"), "global_txn: [[shop, crm]]\n", sources) == [
        "global_txn.0: the messages of shop are Debezium's, which do not tell of transactions over several sources; "
        "leave it out; only sources of format native can have such transactions"
    ]


def test_an_unknown_algorithm_is_told_once_whatever_level_is_asked(tmp_path: Path) -> None:
    (said,) = problems(tmp_path, {"a": "algorithm: swep, level: complete"}, "groups: {x: {views: [a], level: weak}}\n")
    assert said == "views.a.algorithm: there is no algorithm swep; did you mean sweep?"
