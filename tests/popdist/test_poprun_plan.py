"""Which instance runs where: hosts, plan, topology, environment, and places given by others."""

import pytest

import popdist
from popdist._run import cli, placement, shim
from popdist._run.command_line import Problem


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", "a"),
        ("a,b", "a b"),
        ("host[0-2,4]", "host0 host1 host2 host4"),
        ("n[08-10].lan,x", "n08.lan n09.lan n10.lan x"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
        ("me@10.0.0.1, ::1", "me@10.0.0.1 ::1"),
    ],
)
def test_lists_of_hosts(text, names):
    assert placement.expand_hosts(text) == tuple(names.split())


def test_files_of_hosts(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=4\n\nb[0-1]  # two\n")
    assert placement.read_hostfile(str(file)) == ("a", "b0", "b1")
    file.write_text("# none\n")
    with pytest.raises(Problem, match="lists no host"):
        placement.read_hostfile(str(file))
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(Problem, match="cannot be read: it is not text"):
        placement.read_hostfile(str(file))


def test_instances_are_divided_evenly_and_in_order():
    plan = placement.make_plan(("a", "b"), 4, 12, ipus=2, domains=2)
    rows = [(i.rank, i.host, i.local_rank, i.local_size, i.domain, i.offset, i.replicas)
            for i in plan.instances]  # fmt: skip
    assert rows == [
        (0, "a", 0, 2, 0, 0, 3),
        (1, "a", 1, 2, 0, 3, 3),
        (2, "b", 0, 2, 1, 6, 3),
        (3, "b", 1, 2, 1, 9, 3),
    ]
    assert plan.hosts == ("a", "b")
    assert placement.make_plan(("a",), 3, None).replicas == 3


def test_popdist_reads_what_poprun_sets(monkeypatch):
    plan = placement.make_plan(("a", "b"), 4, 12, ipus=2)
    for instance in plan.instances:
        for name, value in placement.of_instance(plan, instance).items():
            monkeypatch.setenv(name, value)
        assert popdist.isPopdistEnvSet()
        popdist._environment.check()
        assert (popdist.getInstanceIndex(), popdist.getNumInstances()) == (instance.rank, 4)
        assert popdist.getLocalInstanceIndex() == instance.local_rank
        assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()) == (12, 3)
        assert popdist.getReplicaIndexOffset() == instance.offset
        assert popdist.checkNumIpusPerReplica(2)


def test_the_topology_is_listed_by_host():
    lines = cli.topology_table(
        placement.make_plan(placement.expand_hosts("n[0-63]"), 256, 512)
    ).splitlines()
    assert lines[0] == "poprun topology"
    assert lines[2].split() == ["hosts", "ILDs", "instances", "replicas"]
    assert lines[-1].split() == ["n63", "0", "252-255", "504-511"]
    assert len(lines) == 3 + 64


@pytest.mark.parametrize(
    ("count", "cores", "shares"),
    [
        (2, [0, 1, 2, 3], [{0, 1}, {2, 3}]),
        (2, [0, 2, 1, 3], [{0, 2}, {1, 3}]),
        (3, [0, 1, 2, 3], [{0}, {1}, {2, 3}]),
        (3, [5, 7], [{5}, {7}, {5}]),
    ],
)
def test_cores_are_divided_between_neighbours(count, cores, shares):
    assert [shim.share(index, count, cores) for index in range(count)] == shares


def test_cores_come_in_the_order_of_their_nodes(tmp_path, monkeypatch):
    for name, cores in (("node0", "0,2"), ("node1", "1,3-4\n"), ("node10", "6")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cores)
    (tmp_path / "power").mkdir()
    monkeypatch.setattr(shim.os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5, 6})
    assert shim.cores_by_node(str(tmp_path)) == [0, 2, 1, 4, 6, 5]
    assert shim.cores_by_node(str(tmp_path / "absent")) == [0, 1, 2, 4, 5, 6]


def test_interfaces_of_this_host():
    result = shim.interfaces()
    assert "127.0.0.1" in result.values()
    assert shim.within("127.0.0.1", "127.0.0.0/8")
    assert not shim.within("127.0.0.1", "10.0.0.0/8")


SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_ID": "2",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "n[07-08]",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
}


def test_places_of_slurm():
    place = placement.find_place(SLURM)
    assert (place.by, place.rank, place.size) == ("Slurm", 5, 7)
    assert (place.local_rank, place.local_size, place.address) == (1, 3, "n07")
    assert 20000 <= place.port < 30000
    assert place.port == placement.find_place(SLURM | {"SLURM_PROCID": "0"}).port
    assert place.port != placement.find_place(SLURM | {"SLURM_STEP_ID": "3"}).port
    assert placement.find_place(SLURM | {"SLURM_STEP_TASKS_PER_NODE": "3(x2),1"}).local_size == 3


def test_a_batch_script_is_no_place():
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "77"}
    assert placement.find_place(batch) is None
    assert placement.find_place(SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}) is None
    assert placement.find_place({}) is None


OMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-1@1",
}


def test_places_of_mpi():
    place = placement.find_place(OMPI)
    assert (place.by, place.rank, place.size, place.address) == ("MPI", 1, 2, "127.0.0.1")
    other = placement.find_place(
        OMPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    )
    assert (other.local_rank, other.local_size, other.address) == (0, 1, None)
    mpich = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
    place = placement.find_place(mpich)
    assert (place.rank, place.size, place.local_rank, place.local_size) == (2, 4, 0, 2)
    with pytest.raises(Problem, match="MPI says that this is rank 4 of 4"):
        placement.find_place(mpich | {"PMI_RANK": "4"})


def test_what_poprun_started_is_not_adopted_again():
    plan = placement.make_plan(("localhost",), 2, 2)
    assert placement.find_place(placement.of_instance(plan, plan.instances[1])) is None
