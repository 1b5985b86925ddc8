"""``poptorch.load``: the loaded wrapper goes on exactly where the saved one stood."""

import copy
import json
import os
import subprocess
import sys

import pytest
import torch

import poptorch
from helpers import altered
from helpers.exported import Everything, continued_elsewhere, everything
from helpers.wrapping import inference, options, rows, scorer, sgd, trainer

# Rules of all others are held by unit/compilation/test_stored.py.
OPTIMIZERS = {
    "SGD": lambda m: poptorch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda m: poptorch.optim.AdamW(m.parameters(), lr=0.01, loss_scaling=8.0),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5, centered=True),
    "ASGD": lambda m: torch.optim.ASGD(m.parameters(), t0=2.0),
    "LAMB": lambda m: poptorch.optim.LAMB(m.parameters(), lr=0.01, weight_decay=0.1),
}


def trained(optimizer_of=OPTIMIZERS["AdamW"], calls=3, **settings):
    """A model after some calls of its training wrapper."""
    model = everything()
    wrapped = poptorch.trainingModel(model, options(randomSeed=6, **settings), optimizer_of(model))
    for seed in range(calls):
        wrapped(*rows(8, seed))
    return wrapped


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "er" / "model.poptorch"


def saved(wrapped, path, **settings):
    wrapped.save(path, **settings)
    return poptorch.load(path)


def assert_same_state(left, right):
    assert list(left.state_dict()) == list(right.state_dict())
    for name, value in left.state_dict().items():
        assert torch.equal(value, right.state_dict()[name]), name
        assert value.dtype == right.state_dict()[name].dtype


def assert_go_on_alike(left, right, count=8):
    for seed in (21, 22, 23):
        for a, b in zip(left(*rows(count, seed)), right(*rows(count, seed)), strict=True):
            assert torch.equal(a, b)
    assert_same_state(left, right)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_bit_for_bit(name, path):
    wrapped = trained(OPTIMIZERS[name])
    loaded = saved(wrapped, path)
    assert loaded.isCompiled()
    assert loaded.isAttachedToDevice()
    assert_same_state(wrapped, loaded)
    assert_go_on_alike(wrapped, loaded)


SETTINGS = [
    {"gradientAccumulation": 2},
    {"deviceIterations": 2, "outputMode": poptorch.OutputMode.All},
    {"replicationFactor": 2, "broadcastBuffers": False, "deviceIterations": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=["accumulation", "iterations", "replicas"])
def test_every_way_of_batching_goes_on(settings, path):
    wrapped = trained(**settings)
    assert_go_on_alike(wrapped, saved(wrapped, path))


def test_a_file_of_a_loaded_model_is_as_good(path):
    wrapped = trained()
    second = saved(saved(wrapped, path), path.with_name("second"))
    assert_go_on_alike(wrapped, second)


def test_a_new_process_goes_on_without_the_class(path, tmp_path):
    wrapped = trained()
    wrapped.save(path)
    weights = continued_elsewhere(path, tmp_path / "weights.pt")
    assert weights["known"] is False
    assert weights["losses"] == [wrapped(*rows(8, seed))[0].item() for seed in (11, 12, 13)]
    model = everything(9)
    model.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert_same_state(model, wrapped)


_COLD = """
import sys, torch, poptorch
poptorch.load(sys.argv[1])(torch.ones(8, 4))
print("torch._dynamo" in sys.modules)
"""


def test_loading_waits_for_no_compiler_of_torch(path):
    wrapped = poptorch.inferenceModel(everything().eval(), options())
    wrapped(torch.ones(8, 4))
    wrapped.save(path)
    # In a new process of Python: those that tests start have the compiler already.
    command = [sys.executable, "-W", "ignore", "-c", _COLD, str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    assert done.stdout.endswith("False\n")


# -- inference -------------------------------------------------------------------------------


def test_inference_with_defaults_and_keywords(path):
    model = everything().eval()
    wrapped = poptorch.inferenceModel(model, options(deviceIterations=2))
    expected = wrapped(rows(8)[0])
    loaded = saved(wrapped, path)
    for given in ({"x": rows(8)[0]}, {"x": rows(8)[0], "target": None}):
        assert torch.equal(loaded(**given), expected)
    with pytest.raises(poptorch.Error, match="Type mismatch for target"):
        loaded(*rows(8))
    with pytest.raises(AssertionError, match="'y' is not a valid parameter"):
        loaded(rows(8)[0], y=1)
    assert loaded.options.output_mode == poptorch.OutputMode.All


# -- the restored model ----------------------------------------------------------------------


def test_the_model_is_a_plain_tree_of_tensors(path):
    wrapped = trained()
    model = saved(wrapped, path).model
    assert isinstance(model, poptorch.RestoredModule)
    assert "RestoredModule:Everything" in repr(model)
    assert "RestoredModule:BatchNorm1d" in repr(model)
    own = wrapped.model
    for listed in ("named_parameters", "named_buffers", "named_modules"):
        names = [name for name, _ in getattr(model, listed)()]
        assert names == [name for name, _ in getattr(own, listed)()]
    assert model.out.weight is model.fc.weight
    assert not dict(model.named_parameters())["last.0.bias"].requires_grad
    assert dict(model.named_buffers())["scale"] == 0.5
    assert "scale" not in model.state_dict()
    with pytest.raises(poptorch.Error, match=r"without its Python class.*load\(\.\.\., model="):
        model.fc(torch.ones(1, 4))


def test_the_users_own_class_can_be_handed_in(path):
    wrapped = trained()
    wrapped.save(path)
    model = everything(8)
    loaded = poptorch.load(path, model=model)
    assert loaded.model is model
    assert isinstance(model, Everything)
    assert_go_on_alike(wrapped, loaded)
    with pytest.raises(RuntimeError, match="already been wrapped"):
        poptorch.load(path, model=model)


# -- options ---------------------------------------------------------------------------------


def test_options_come_back_and_can_be_edited(path):
    wrapped = trained(modelName="it", connectionType=poptorch.ConnectionType.OnDemand)
    wrapped.save(path)
    seen = []

    def edit(opts):
        seen.append(opts.random_seed)
        opts.modelName("edited")

    loaded = poptorch.load(path, edit)
    assert seen == [6]
    assert loaded.options.model_name == "edited"
    assert loaded.options.connection_type == poptorch.ConnectionType.OnDemand
    with pytest.raises(AttributeError, match="frozen"):
        loaded.options.deviceIterations(3)
    assert_go_on_alike(wrapped, loaded)


def test_the_number_of_iterations_may_change_without_another_program(path):
    wrapped = inference(lambda x: x * 2)
    wrapped(torch.ones(2, 3))
    wrapped.save(path)
    loaded = poptorch.load(path, lambda opts: opts.deviceIterations(3))
    x = torch.randn(6, 3)
    assert torch.equal(loaded(x), x * 2)
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for arg.*expected \[6, 3\]"):
        loaded(torch.ones(2, 3))


def test_an_edit_that_needs_another_program_is_refused(path):
    trained().save(path)
    with pytest.raises(poptorch.Error, match=r"another model: gradient_accumulation: 1 there, 2"):
        poptorch.load(path, lambda opts: opts.Training.gradientAccumulation(2))


def test_what_was_compiled_offline_runs_where_it_is_loaded(path):
    opts = options().useOfflineIpuTarget()
    model = scorer()
    wrapped = poptorch.trainingModel(model, opts, sgd(model))
    wrapped.compileAndExport(path, *rows(4))
    with pytest.raises(AssertionError, match="offline device"):
        wrapped(*rows(4))
    loaded = poptorch.load(path)
    assert loaded.options.connection_type == poptorch.ConnectionType.Always
    assert not loaded.options.exists("ipu_version")
    online = trainer(scorer())
    for a, b in zip(loaded(*rows(4)), online(*rows(4)), strict=True):
        assert torch.equal(a, b)


# -- refusals --------------------------------------------------------------------------------


def test_a_damaged_file_is_refused_and_leaves_the_class_alone(path):
    trained().save(path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    model = everything()
    with pytest.raises(AssertionError, match=r"Invalid file .*checksum|Invalid file .*CRC"):
        poptorch.load(path, model=model)
    assert type(model) is Everything


CHANGES = {
    "random numbers": lambda m: m["content"].update(rng_state=["x"]),
    "configuration": lambda m: m["content"]["executable"].update(key_parts=[]),
    "options": lambda m: m["content"].update(options={"x": {"no such kind": 1}}),
    "device": lambda m: m["content"].pop("device"),
    "optimizer": lambda m: m["content"]["model"]["rule"]["groups"]["tuple"][0]["group"]["params"][
        "tuple"
    ].append("no such weight"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_manifest_with_right_checksums_that_means_nothing_is_an_invalid_file(path, change):
    trained().save(path)
    content = altered.members(path)
    manifest = json.loads(content["manifest.json"])
    change(manifest)
    altered.write(path, {**content, "manifest.json": json.dumps(manifest).encode()})
    for kind in (AssertionError, poptorch.Error):
        with pytest.raises(kind, match=r"Invalid file .*model\.poptorch"):
            poptorch.load(path)


def test_a_detached_model_is_saved_with_the_weights_of_the_host(path):
    wrapped = trained()
    wrapped.detachFromDevice()
    with torch.no_grad():
        wrapped.model.last[0].bias.fill_(3.0)
    loaded = saved(wrapped, path)
    assert torch.equal(loaded.model.last.get_parameter("0.bias"), torch.full((3,), 3.0))
    assert_go_on_alike(wrapped, loaded)


@pytest.mark.parametrize("model", [scorer(), torch.nn.Linear(4, 3)])
def test_an_instance_of_another_class_is_refused_by_name(model, path):
    trained().save(path)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(poptorch.Error, match=r"has other parameters than the file: fc\.weight"):
        poptorch.load(path, model=model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model).__name__ in ("Scorer", "Linear")
