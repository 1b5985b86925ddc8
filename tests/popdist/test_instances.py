"""What popdist says of an environment, and what it refuses."""

import inspect

import pytest

import popdist

NO_MPI = {"OMPI_COMM_WORLD_SIZE": None, "OMPI_COMM_WORLD_RANK": None}


def actual():
    """Every number that popdist reads, by the function's name."""
    names = (name for name in popdist.__all__ if name.startswith("get"))
    return {name.removeprefix("get"): getattr(popdist, name)() for name in names}


ALONE = {
    "DeviceId": 0,
    "InstanceIndex": 0,
    "LocalInstanceIndex": 0,
    "NumInstances": 1,
    "NumIpusPerReplica": 1,
    "NumLocalReplicas": 1,
    "NumTotalReplicas": 1,
    "ReplicaIndexOffset": 0,
}


def test_without_poprun_a_program_is_alone():
    assert popdist.isPopdistEnvSet() is False
    assert actual() == ALONE
    assert popdist.checkNumIpusPerReplica(1)
    assert not popdist.checkNumIpusPerReplica(2)
    assert popdist.init() is None


@pytest.mark.parametrize("mpi", [{}, NO_MPI], ids=["started by MPI", "without MPI's numbers"])
def test_poprun_tells_an_instance_its_share(poprun, mpi):
    poprun(index=2, instances=4, local=2, ipus=8, POPDIST_LOCAL_INSTANCE_INDEX=1, **mpi)
    assert popdist.isPopdistEnvSet() is True
    assert actual() == {
        "DeviceId": 1,
        "InstanceIndex": 2,
        "LocalInstanceIndex": 1,
        "NumInstances": 4,
        "NumIpusPerReplica": 8,
        "NumLocalReplicas": 2,
        "NumTotalReplicas": 8,
        "ReplicaIndexOffset": 4,
    }
    assert popdist.checkNumIpusPerReplica(8)


def test_instances_may_have_different_numbers_of_replicas(poprun):
    uneven = {
        "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": 0,
        "POPDIST_NUM_TOTAL_REPLICAS": 3,
        "POPDIST_REPLICA_INDEX_OFFSET": 2,
    }
    poprun(index=1, instances=2, local=1, **uneven)
    assert (popdist.getNumTotalReplicas(), popdist.getReplicaIndexOffset()) == (3, 2)
    assert (popdist.getInstanceIndex(), popdist.getNumInstances()) == (1, 2)


def test_processes_of_plain_mpirun_are_instances(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    assert not popdist.isPopdistEnvSet()
    changed = {"InstanceIndex": 2, "NumInstances": 3, "NumTotalReplicas": 3}
    assert actual() == ALONE | changed | {
        "ReplicaIndexOffset": 2, "LocalInstanceIndex": 1, "DeviceId": 1,
    }  # fmt: skip


def by_torchrun(monkeypatch, **changed):
    numbers = {"WORLD_SIZE": "3", "RANK": "2", "LOCAL_RANK": "1"}
    for name, value in (numbers | changed).items():
        monkeypatch.setenv(name, value)


def test_processes_of_plain_torchrun_are_instances(monkeypatch):
    by_torchrun(monkeypatch)
    assert not popdist.isPopdistEnvSet()
    changed = {"InstanceIndex": 2, "NumInstances": 3, "NumTotalReplicas": 3}
    assert actual() == ALONE | changed | {
        "ReplicaIndexOffset": 2, "LocalInstanceIndex": 1, "DeviceId": 1,
    }  # fmt: skip
    monkeypatch.delenv("RANK")  # a leftover, which is not a process's number
    monkeypatch.delenv("LOCAL_RANK")
    assert actual() == ALONE


def test_poprun_and_mpi_come_before_torchrun(poprun, monkeypatch):
    by_torchrun(monkeypatch)
    poprun(instances=2, index=1, local=2, OMPI_COMM_WORLD_SIZE=None, OMPI_COMM_WORLD_RANK=None)
    assert (popdist.getInstanceIndex(), popdist.getNumInstances()) == (1, 2)


def test_numbers_of_torchrun_are_checked(monkeypatch):
    by_torchrun(monkeypatch, RANK="3")
    with pytest.raises(popdist.Error, match=r"instance 3 of 3.*Look at RANK and WORLD_SIZE"):
        popdist.init()
    by_torchrun(monkeypatch, WORLD_SIZE="many")
    with pytest.raises(popdist.Error, match="WORLD_SIZE='many' should be an integer, 1 or more"):
        popdist.getNumInstances()


def test_init_of_several_instances_needs_a_place_to_meet(poprun):
    poprun(index=1, instances=2, local=4)
    with pytest.raises(popdist.Error, match=r"Process 1 of 2 does not know where to meet.*poprun"):
        popdist.init()
    assert issubclass(popdist.Error, RuntimeError)


def test_a_function_runs_on_chosen_instances_only(poprun):
    calls = []

    def keep(*args, **kwargs):
        calls.append((args, kwargs))
        return "kept"

    assert popdist.execute_on_instances({0}, keep, 1, b=2) == "kept"
    assert popdist.execute_on_instances({1, 7}, keep) is None
    poprun(index=1, instances=2)
    assert popdist.execute_on_instances([0], keep) is None
    assert popdist.execute_on_instances([0, 1], keep, 3) == "kept"
    assert calls == [((1,), {"b": 2}), ((3,), {})]
    with pytest.raises(popdist.Error, match=r"takes a set of instances: \{0\}"):
        popdist.execute_on_instances(0, keep)  # pyright: ignore[reportArgumentType]


READERS = {
    "POPDIST_NUM_TOTAL_REPLICAS": popdist.getNumTotalReplicas,
    "POPDIST_NUM_IPUS_PER_REPLICA": popdist.getNumIpusPerReplica,
    "POPDIST_NUM_LOCAL_REPLICAS": popdist.getNumLocalReplicas,
    "POPDIST_REPLICA_INDEX_OFFSET": popdist.getReplicaIndexOffset,
    "POPDIST_LOCAL_INSTANCE_INDEX": popdist.getLocalInstanceIndex,
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("text", ["", "two", "-1", "1.5"])
def test_what_is_no_count_is_named(poprun, name, text):
    poprun(**{name: text})
    with pytest.raises(popdist.Error, match=rf"{name}='{text}' should be an integer, [01] or more"):
        READERS[name]()


@pytest.mark.parametrize("name", READERS)
def test_a_missing_variable_is_named_when_it_is_needed(poprun, name):
    poprun(**{name: None})
    assert popdist.isPopdistEnvSet()
    with pytest.raises(popdist.Error, match=f"{name} is not set, although POPDIST_"):
        READERS[name]()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"POPDIST_NUM_TOTAL_REPLICAS": 5}, "REPLICAS=5, but 2 instances.*=2 replicas.* make 4"),
        ({"POPDIST_NUM_TOTAL_REPLICAS": 5, **NO_MPI}, "is not known.*=5 is not a multiple"),
        ({"POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": 0, **NO_MPI}, "is not known.*Set OMPI"),
        ({"OMPI_COMM_WORLD_RANK": 2}, "would be instance 2 of 2.*count from 0"),
        ({"OMPI_COMM_WORLD_SIZE": 0}, "SIZE='0' should be an integer, 1 or more"),
    ],
)
def test_variables_that_contradict_each_other(poprun, changed, message):
    poprun(instances=2, **changed)
    with pytest.raises(popdist.Error, match=message):
        popdist.init()


def test_parameters_are_those_of_the_original():
    functions = {n: f for n, f in vars(popdist).items() if inspect.isfunction(f)}
    assert {*functions, "Error"} == set(popdist.__all__)
    parameters = {n: list(inspect.signature(f).parameters) for n, f in functions.items()}
    assert parameters.pop("execute_on_instances") == ["instances", "func", "args", "kwargs"]
    assert parameters.pop("getDeviceId") == ["ipus_per_replica"]
    assert len(parameters.pop("checkNumIpusPerReplica")) == 1
    assert not any(parameters.values())
