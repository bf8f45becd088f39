"""Where Spark's driver listens, and to whom."""

from __future__ import annotations

import pytest
from pyspark import SparkConf

from viewkeeper.errors import UsageError
from viewkeeper.job.session import _doors


def doors(**given: str) -> dict[str, str]:
    conf = SparkConf(loadDefaults=False)
    for key, value in given.items():
        conf.set("spark." + key.replace("_", "."), value)
    return _doors(conf)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_a_driver_that_has_no_executors_elsewhere_is_for_this_machine_alone(master: str) -> None:
    told = doors(master=master)
    assert (told["spark.driver.bindAddress"], told["spark.driver.host"]) == ("127.0.0.1", "127.0.0.1")
    assert doors() == told, "it is the default"


@pytest.mark.parametrize("master", ["yarn", "k8s://https://a:6443"])
def test_a_cluster_that_makes_secrets_by_itself_uses_them(master: str) -> None:
    assert doors(master=master) == {"spark.authenticate": "true"}


@pytest.mark.parametrize("master", ["spark://a:7077", "local-cluster[2,1,1024]"])
def test_another_cluster_needs_a_decision(master: str) -> None:
    with pytest.raises(UsageError, match=r"spark\.authenticate is not set; set it to true"):
        doors(master=master)
    for decision in ("true", "false"):
        assert doors(master=master, authenticate=decision) == {"spark.authenticate": "true"}, "what is given stands"
