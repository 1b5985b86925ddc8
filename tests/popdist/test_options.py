"""popdist.poptorch.Options: from the environment, for loaders and wrappers, not to be overruled."""

import copy
import pickle

import pytest
import torch

import popdist.poptorch
import poptorch
from helpers.wrapping import rows, scorer, sgd, weights

Options = popdist.poptorch.Options


def numbers(options):
    distributed = options.Distributed
    return options.replication_factor, distributed.processId, distributed.numProcesses


def quiet(*args, **kwargs):
    return Options(*args, **kwargs).showCompilationProgressBar(False)


def test_without_poprun_they_are_those_of_a_single_process():
    assert numbers(Options()) == (1, 0, 1)
    assert isinstance(Options(), poptorch.Options)
    assert Options().ipus_per_replica == 1
    assert Options(2).ipus_per_replica == Options(ipus_per_replica=2).ipus_per_replica == 2


def test_poprun_decides_replicas_and_process(poprun):
    poprun(index=1, instances=3, local=2, ipus=4)
    assert numbers(Options()) == (2, 1, 3)
    assert Options().ipus_per_replica == 4
    assert Options(2).ipus_per_replica == 2


def test_processes_are_known_without_the_numbers_of_mpi(poprun, monkeypatch):
    poprun(index=1, instances=3, local=2)
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE")
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
    assert numbers(Options()) == (2, 1, 3)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("arguments", [(), (1,), (1, 2, 3)])
@pytest.mark.parametrize(
    "name",
    [
        "useIpuId",
        "replicationFactor",
        "Distributed.disable",
        "Distributed.setEnvVarNames",
        "Distributed.configureProcessId",
    ],
)
def test_what_poprun_decides_cannot_be_called(poprun, name, arguments, started):
    if started:
        poprun()
    options = Options()
    before = repr(options)
    namespace, _, setter = name.rpartition(".")
    holder = getattr(options, namespace) if namespace else options
    with pytest.raises(
        RuntimeError, match=rf"Cannot call `{name}` with popdist\.poptorch\.Options"
    ):
        getattr(holder, setter)(*arguments)
    with pytest.raises(popdist.Error, match="poprun decides it"):
        getattr(holder, setter)(any_name=1)
    assert repr(options) == before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda o: o.clone(), copy.copy, lambda o: o])
def test_copies_keep_class_and_values(poprun, monkeypatch, copied):
    poprun(index=1, instances=2, local=3, ipus=4)
    original = Options().deviceIterations(5)
    for name in ("POPDIST_NUM_LOCAL_REPLICAS", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.setenv(name, "0")  # a copy does not look again
    for result in (copied(original), pickle.loads(pickle.dumps(copied(original)))):  # noqa: S301
        assert type(result) is Options
        assert numbers(result) == (3, 1, 2)
        assert (result.ipus_per_replica, result.device_iterations) == (4, 5)
        assert repr(result) == repr(original)
        with pytest.raises(popdist.Error, match=r"Cannot call `Distributed.disable`"):
            result.Distributed.disable()


@pytest.mark.parametrize(
    ("value", "message"),
    [(0, "Invalid ipus_per_replica 0: it is 1 or more"), (1.5, "not 1.5"), (True, "not True")],
)
def test_a_replica_has_a_number_of_ipus(value, message):
    with pytest.raises(AssertionError, match=message):
        Options(value)


def test_settings_of_the_environment_build_on_those_of_poprun(poprun, monkeypatch, tmp_path):
    poprun(local=4)
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(
        "POPTORCH_DEFAULT_OPTIONS", '{"Training.gradientAccumulation": 2, "deviceIterations": 3}'
    )
    options = Options()
    assert (options.replication_factor, options.Training.gradient_accumulation) == (4, 2)
    assert options.device_iterations == 3
    assert options._Popart.options["cachePath"] == str(tmp_path)
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"replicationFactor": 3}')
    with pytest.raises(RuntimeError, match="Cannot call `replicationFactor`"):
        Options()


def trained(options):
    model = scorer()
    wrapped = poptorch.trainingModel(model, options, optimizer=sgd(model))
    losses = [wrapped(*rows(4))[0] for _ in range(3)]
    return torch.cat([weights(model), *losses])


def test_replicas_of_one_instance_train_as_replication_factor_does(poprun):
    poprun(instances=1, local=2)
    plain = poptorch.Options().showCompilationProgressBar(False).replicationFactor(2)
    assert torch.equal(trained(quiet()), trained(plain))


def test_a_contradictory_environment_is_refused(poprun):
    poprun(instances=2, local=2, POPDIST_NUM_TOTAL_REPLICAS=3)
    with pytest.raises(popdist.Error, match="REPLICAS=3, but 2 instances"):
        Options()


def test_training_in_several_instances_needs_a_place_to_meet(poprun):
    poprun(index=1, instances=3, local=2)
    with pytest.raises(poptorch.Error, match="Process 1 of 3 does not know where to meet"):
        trained(quiet())


def test_instances_validate_disjoint_parts_of_the_data(poprun):
    data = torch.utils.data.TensorDataset(*rows(24))
    seen = []
    for index in range(3):
        poprun(index=index, instances=3, local=2)
        options = quiet()
        wrapped = poptorch.inferenceModel(scorer(), options)
        loader = poptorch.DataLoader(options, data, batch_size=2)
        seen += [wrapped(x, y)[1] for x, y in loader]
        assert len(loader) == 2
    with torch.no_grad():
        assert torch.allclose(torch.cat(seen), scorer()(*rows(24))[1])


def test_a_saved_model_runs_in_a_program_without_poprun(poprun, monkeypatch, tmp_path):
    poprun(local=2)
    model = scorer()
    wrapped = poptorch.trainingModel(model, quiet(2), optimizer=sgd(model))
    wrapped(*rows(4))
    wrapped.save(str(tmp_path / "model.poptorch"))
    monkeypatch.delenv("POPDIST_NUM_LOCAL_REPLICAS")
    loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    assert torch.equal(loaded(*rows(4))[0], wrapped(*rows(4))[0])
