"""Which GPUs a rank sees."""

from __future__ import annotations

import pytest

from lakelens.errors import ClusterConfigurationError
from lakelens.training.runner.placement.gpus import (
    driver_gpus,
    executor_gpus,
    group_by_machine,
    visible_to_rank,
    visible_to_task,
)
from lakelens.training.runner.placement.job import place

pytestmark = pytest.mark.unit


def test_each_rank_sees_its_hosts_gpus_in_the_order_of_local_ranks():
    shown = visible_to_rank(["6", "4"], 1, wanted=None)
    assert shown["CUDA_VISIBLE_DEVICES"].split(",")[1] == "4"
    assert shown["LAKELENS_GPU"] == "4"
    assert visible_to_rank([], 0, wanted=None) == {}
    assert visible_to_rank([], 0, wanted=False) == {"CUDA_VISIBLE_DEVICES": "-1"}


def test_a_task_sees_the_gpus_that_spark_gave_it_and_without_any_what_its_executor_sees():
    assert visible_to_task(["1"], None) == {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visible_to_task(["1", "0"], "4,6")["CUDA_VISIBLE_DEVICES"] == "6,4"
    assert visible_to_task(["0"], "GPU-7f3a")["CUDA_VISIBLE_DEVICES"] == "GPU-7f3a"
    assert visible_to_task([], "4,6") == {}
    with pytest.raises(ClusterConfigurationError, match="'2' is not an index into CUDA_VISIBLE_DEVICES='4,6'"):
        visible_to_task(["2"], "4,6")


def test_the_drivers_gpus_are_dealt_one_each():
    assert driver_gpus(2, wanted=None, available=["0", "1", "2"]) == ["0", "1"]
    assert driver_gpus(2, wanted=None, available=[]) == []
    assert driver_gpus(2, wanted=False, available=["0"]) == []
    with pytest.raises(
        ClusterConfigurationError, match="3 ranks need 3 GPUs on the driver and it has 2; start at most 2 ranks"
    ):
        driver_gpus(3, wanted=None, available=["0", "1"])
    with pytest.raises(ClusterConfigurationError, match=r"it has 0; .*set use_gpu to False"):
        driver_gpus(1, wanted=True, available=[])


def hello(gpus, visible=None, machine="m", executor="1"):
    return {"gpus": gpus, "visible_gpus": visible, "host": "a", "machine": machine, "executor": executor}


def test_local_ranks_are_counted_by_machine_and_by_executor_where_containers_number_gpus_anew():
    assert group_by_machine([hello([], machine="m"), hello([], machine="n"), hello([], machine="m")]) == ["m", "n", "m"]
    assert group_by_machine([hello(["0"], executor="1"), hello(["1"], executor="2")]) == ["m", "m"]
    assert group_by_machine([hello(["0"], executor="1"), hello(["0"], executor="2")]) == ["m-1", "m-2"]


def test_executors_gpus_come_from_sparks_addresses_through_the_index_map():
    placements = place(["a", "b", "a"])
    hellos = [hello(["1"], "5,7"), hello(["0"]), hello(["0"], "5,7")]
    assert executor_gpus(placements, hellos, wanted=None) == [["7", "5"], ["0"], ["7", "5"]]
    assert executor_gpus(placements, hellos, wanted=False) == [[], [], []]
    assert executor_gpus(placements, [hello([])] * 3, wanted=None) == [[], [], []]


def test_gpus_that_are_not_configured_are_an_error_that_names_the_settings():
    with pytest.raises(ClusterConfigurationError, match=r"rank 1 on a no GPU; set spark.executor.resource.gpu.amount"):
        executor_gpus(place(["a", "a"]), [hello(["0"]), hello([])], wanted=True)
    with pytest.raises(ClusterConfigurationError, match="were given the same GPU"):
        executor_gpus(place(["a", "a"]), [hello(["0"]), hello(["0"])], wanted=None)
