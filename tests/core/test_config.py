"""The configuration file: what it gives, and every problem at once with its place and remedy."""

from __future__ import annotations

import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from viewkeeper.algorithms.registry import ALGORITHMS
from viewkeeper.config import Config, KafkaConfig, load_config
from viewkeeper.config_groups import GroupConfig
from viewkeeper.config_sources import SqliteConfig
from viewkeeper.errors import ConfigError

GOOD = """\
kafka: {bootstrap: "127.0.0.1:9092"}
warehouse: ./warehouse
sources:
  shop: {kind: sqlite, path: ./shop.db}
  crm: {kind: sqlite, path: /data/crm.db, topic: customers}
views:
  orders: {sql: SELECT 1}
"""


def written(folder: Path, text: str | bytes) -> Path:
    file = folder / "conf.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def problems(folder: Path, text: str | bytes) -> list[str]:
    """The problems of a configuration, without the path of its file."""
    file = written(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert caught.value.exit_code == 2
    assert all(p.place.startswith(str(file)) for p in caught.value.problems)
    return [str(p).removeprefix(str(file)).removeprefix(": ") for p in caught.value.problems]


def load(folder: Path, text: str) -> Config:
    return load_config(written(folder, text))


def test_what_the_file_leaves_out_takes_its_default(tmp_path: Path) -> None:
    config = load(tmp_path, GOOD)
    assert config.sources["shop"].topic == "shop.updates"
    assert config.sources["crm"].topic == "customers"
    assert config.views["orders"].topic == "view.orders"
    assert config.views["orders"].algorithm == "sweep"
    assert (config.fold, config.bad_messages) == ("auto", "stop")
    assert (config.min_cut_interval, config.keep) == (timedelta(milliseconds=250), timedelta(days=7))


def test_relative_paths_start_at_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, GOOD)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config("../conf.yaml")
    shop, crm = config.sources["shop"], config.sources["crm"]
    assert isinstance(shop, SqliteConfig) and isinstance(crm, SqliteConfig)
    assert (config.warehouse, shop.path) == (tmp_path / "warehouse", tmp_path / "shop.db")
    assert crm.path == Path("/data/crm.db")


def test_errors_can_name_a_place_in_the_file_as_the_user_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, GOOD)
    monkeypatch.chdir(tmp_path)
    config = load_config("conf.yaml")
    assert config.place("views", "orders", "sql") == "conf.yaml: views.orders.sql"
    assert pickle.loads(pickle.dumps(config)).place() == "conf.yaml"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("1.5s", timedelta(seconds=1.5)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
    ],
)
def test_durations_are_a_number_and_a_unit(tmp_path: Path, text: str, meant: timedelta) -> None:
    config = load(tmp_path, GOOD + f"keep: {text}\nfold: {text}\n")
    assert config.keep == config.fold == meant


@pytest.mark.parametrize("text", ["250", "7 weeks", "-1s", "0s", "1e3s", "soon", "[1s]", "999999999999d", "null"])
def test_a_wrong_duration_is_refused_with_an_example(tmp_path: Path, text: str) -> None:
    (found,) = problems(tmp_path, GOOD + f"keep: {text}\n")
    assert found.startswith("keep: ")


def test_all_problems_are_reported_at_once_each_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    text = """\
kafak: {}
kafka: {bootstrap: localhost, options: {acks: 1}}
warehouse: 3
fold: sometimes
bad_messages: quarantin
sources:
  shop: {kind: sqlite, path: "${NOWHERE}/x.db", topc: a}
  crm: {kind: oracle, url: x}
  stock: {kind: sqlite}
  _x: {kind: sqlite, path: x.db}
  a-b: 5
views:
  v: {sql: 5, algorithm: eca}
  v: {sql: 7}
  w:
"""
    assert sorted(problems(tmp_path, text)) == sorted(
        [
            "views.v: stands twice (lines 13 and 14); keep one of them",
            "sources.shop.path: ${NOWHERE} is not set; set the environment variable NOWHERE",
            "kafka.bootstrap: must be host:port, or several with commas between, not 'localhost'",
            "kafka.options: option acks is not for the configuration to decide; leave it out",
            "warehouse: must be a path",
            "sources.shop.topc: this key is not known; did you mean topic?",
            "sources.crm.kind: 'oracle' is not a known kind of source; use postgres, sqlite",
            "sources.stock.path: is missing; add it",
            "sources._x: cannot be a name; use a letter, then letters, digits and '_'",
            "sources.a-b: cannot be a name; use a letter, then letters, digits and '_'",
            "sources.a-b: must be a mapping such as {kind: sqlite, path: ./shop.db}",
            "views.v.sql: must be text, not a number; put it in quotes",
            "views.w: must be a mapping, not empty",
            "fold: must be auto, every_cut or a duration such as 30s, not 'sometimes'",
            "bad_messages: must be stop or quarantine, not 'quarantin'; did you mean quarantine?",
            "kafak: this key is not known; did you mean kafka?",
        ]
    )


def test_missing_sections_are_named(tmp_path: Path) -> None:
    assert problems(tmp_path, "keep: 7d\n") == [
        f"{section}: is missing; add it" for section in ("kafka", "warehouse", "sources", "views")
    ]


def test_empty_sections_are_named(tmp_path: Path) -> None:
    text = GOOD.partition("sources:")[0] + "sources: {}\nviews:\n"
    assert problems(tmp_path, text) == [
        "sources: is empty; fill it in",
        "views: must be a mapping, not empty",
    ]


def test_an_unknown_key_far_from_all_others_gets_the_list_of_known_ones(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD.replace("{sql: SELECT 1}", "{sql: SELECT 1, zzz: 1}"))
    assert found == "views.orders.zzz: this key is not known; use one of algorithm, level, sql, topic"


def with_view(settings: str) -> str:
    return GOOD.replace("{sql: SELECT 1}", f"{{sql: SELECT 1, {settings}}}")


@pytest.mark.parametrize(
    ("name", "meant"), [("strobo", "strobe"), ("SWEEP", "sweep"), ("nested-sweep", "nested_sweep")]
)
def test_an_unknown_algorithm_is_refused_with_the_nearest_one(tmp_path: Path, name: str, meant: str) -> None:
    (found,) = problems(tmp_path, with_view(f"algorithm: {name}"))
    assert found == f"views.orders.algorithm: there is no algorithm {name}; did you mean {meant}?"


def test_an_algorithm_like_no_other_gets_the_list_of_all(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, with_view("algorithm: xyz"))
    assert found.startswith("views.orders.algorithm: there is no algorithm xyz; use one of ")
    assert set(ALGORITHMS) == set(found.partition("use one of ")[2].split(", "))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_of_every_algorithm_can_be_set(tmp_path: Path, name: str) -> None:
    values = {option: 2 if kind is int else True for option, kind in ALGORITHMS[name].options.items()}
    text = "".join(f", {option}: {str(value).lower()}" for option, value in values.items())
    view = load(tmp_path, with_view(f"algorithm: {name}{text}")).views["orders"]
    assert (view.algorithm, view.options) == (name, values)


def test_an_option_that_is_not_set_is_left_to_the_algorithm(tmp_path: Path) -> None:
    assert load(tmp_path, with_view("algorithm: complete_n")).views["orders"].options == {}


def test_a_refresh_may_be_due_after_some_time(tmp_path: Path) -> None:
    view = load(tmp_path, with_view("algorithm: refresh, every: 30s")).views["orders"]
    assert (view.every, view.options) == (timedelta(seconds=30), {})


def test_an_option_of_another_algorithm_is_refused_with_its_owners(tmp_path: Path) -> None:
    assert problems(tmp_path, with_view("pipeline: 3, every: 5")) == [
        "views.orders.every: algorithm sweep has no such option; it belongs to refresh",
        "views.orders.pipeline: algorithm sweep has no such option; "
        "it belongs to sweep_sequential or sweep_sites or complete_n",
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("algorithm: complete_n, complete_n: 0", "complete_n: must be a whole number of at least 1, not 0"),
        ("algorithm: sweep_sequential, pipeline: true", "pipeline: must be a whole number of at least 1, not True"),
        ("algorithm: sweep_sequential, pipeline: '3'", "pipeline: must be a whole number of at least 1, not '3'"),
        ("algorithm: sweep_sequential, parallel: 1", "parallel: must be true or false, not a number"),
        ("algorithm: refresh, every: 0", "every: must be a number of updates or a duration such as 30s, not 0"),
        ("algorithm: refresh, every: 5x", "every: must be a number of updates or a duration such as 30s, not '5x'"),
        ("algorithm: 3", "algorithm: must be text, not a number; put it in quotes"),
        ("algorithm: strobe, keyd: true", "keyd: this key is not known; use one of algorithm, level, sql, topic"),
        ("algorithm: convergent, keyd: true", "keyd: this key is not known; did you mean keyed?"),
    ],
)
def test_options_are_checked_with_their_place(tmp_path: Path, settings: str, reason: str) -> None:
    assert problems(tmp_path, with_view(settings)) == [f"views.orders.{reason}"]


def test_a_key_that_yaml_does_not_read_as_text_is_refused(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD + "  on: {sql: SELECT 1}\n")
    assert found == "views.on: YAML does not read this key as text; put it in quotes"


def test_two_things_cannot_share_a_topic(tmp_path: Path) -> None:
    text = GOOD.replace("topic: customers", "topic: view_orders")
    (found,) = problems(tmp_path, text)
    assert found == (
        "views.orders.topic: topic view.orders is already used by sources.crm.topic; give each its own topic"
    )


def test_a_topic_cannot_be_the_quarantine_of_a_source(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD.replace("topic: customers", "topic: shop.rejected"))
    assert "already used" in found


def test_two_sources_cannot_be_the_same_database(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD.replace("/data/crm.db", "./x/../shop.db"))
    assert found.startswith("sources.crm.path: database ./x/../shop.db is already used by sources.shop.path")


@pytest.mark.parametrize("topic", ["a b", "ä", "..", "x" * 250])
def test_a_topic_name_that_kafka_refuses_is_refused(tmp_path: Path, topic: str) -> None:
    (found,) = problems(tmp_path, GOOD.replace("customers", f'"{topic}"'))
    assert found.startswith("sources.crm.topic: must be a Kafka topic name")


def test_variables_are_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST_1", "broker.example")
    monkeypatch.setenv("TRICK", '"}\nfold: every_cut')
    text = GOOD.replace("127.0.0.1", "${HOST_1}").replace("SELECT 1", "\"SELECT '$${X}', '${TRICK}'\"")
    config = load(tmp_path, text)
    assert config.kafka.bootstrap == "broker.example:9092"
    assert config.views["orders"].sql == "SELECT '${X}', '\"}\nfold: every_cut'"
    assert config.fold == "auto"


@pytest.mark.parametrize("text", ["${}", "${A-B}", "${A", "${ A }"])
def test_a_malformed_variable_is_refused(tmp_path: Path, text: str) -> None:
    found = problems(tmp_path, GOOD.replace("SELECT 1", f'"SELECT {text}"'))
    assert len(found) == 1 and "names no variable" in found[0]


def test_secrets_are_in_no_repr_and_in_no_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    options = "options: {sasl.password: '${PASSWORD}'}"
    text = GOOD.replace('9092"}', f'9092", {options}}}')
    config = load(tmp_path, text)
    assert config.kafka.client()["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(config) + str(config)
    assert "hunter2" not in "".join(problems(tmp_path, text.replace(options, "options: ['${PASSWORD}']")))


def test_kafka_options_become_text_and_reach_both_kinds_of_client() -> None:
    options = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "socket.keepalive.enable": True,
    }
    secrets = {"sasl.username": "me", "sasl.password": 'a"\\b', "ssl.ca.location": "/ca.pem"}
    kafka = KafkaConfig.model_validate({"bootstrap": "a:1,b:2", "options": {**options, **secrets}})
    client = kafka.client(group_id="g")
    assert (client["group.id"], client["bootstrap.servers"]) == ("g", "a:1,b:2")
    assert client["socket.keepalive.enable"] == "true"
    java = kafka.spark()
    assert java["kafka.bootstrap.servers"] == "a:1,b:2"
    assert java["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="a\\"\\\\b";'
    )
    assert java["kafka.ssl.truststore.location"] == "/ca.pem"
    assert "kafka.sasl.password" not in java


def test_a_file_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: does not exist; give the path"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "null\n"])
def test_an_empty_file_is_one_clear_line(tmp_path: Path, text: str) -> None:
    (found,) = problems(tmp_path, text)
    assert found.startswith("is empty")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kafka: {", "line 1, column 9: is not valid YAML"),
        ("a: b: c", "line 1, column 5: is not valid YAML"),
        ("a: 1\n\tb: 2", "line 2, column 1: is not valid YAML"),
        ("- a\n", "is not a mapping"),
        ("just text", "is not a mapping"),
        ("a: !!python/object:os.system x", "is not valid YAML"),
        ("a: &x {b: *x}", "is not valid YAML"),
        ("a: 1\n---\nb: 2\n", "is not valid YAML"),
        (b"a: \xff\xfe", "is not text in UTF-8"),
        ("a: \x00", "is not valid YAML"),
    ],
)
def test_a_file_that_is_not_a_yaml_mapping_is_one_clear_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    (found,) = problems(tmp_path, text)
    assert said in found
    assert "\n" not in found


def test_the_shipped_configurations_are_valid() -> None:
    conf = Path(__file__).parents[2] / "conf"
    for file in sorted(conf.glob("*.yaml")):
        assert load_config(file).views


def test_the_full_example_names_every_setting() -> None:
    text = (Path(__file__).parents[2] / "conf" / "full-example.yaml").read_text()
    for model in (Config, KafkaConfig, SqliteConfig, GroupConfig):
        for key in model.model_fields:
            assert f"{key}:" in text
