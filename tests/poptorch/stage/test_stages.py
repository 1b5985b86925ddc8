"""``planStages``, ``abele stage`` and ``--limit mk2``: stages of models that are small."""

import json
import re

import pytest
import torch

import poptorch
from abele import __main__ as command_line
from abele.fit import Interval, Verdict
from helpers.staged import model_of

SCRIPT = (
    model_of(16, 64, 64, 32, 128, 1)
    + """\
poptorch.BeginBlock(model.layers[3], "old", ipu_id=1)
options = poptorch.Options().showCompilationProgressBar(False)
options.Training.gradientAccumulation(int(sys.argv[1]))
trainer = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1))
x, target = torch.ones(64, 16), torch.ones(64, 1)
print("losses", [trainer(x, target).item() for _ in range(3)])
"""
)


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.setenv("ABELE_PIPELINE", "workers")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return str(path)


class Deep(torch.nn.Module):
    """Layers one after the other, the first and last of which may share their weight."""

    def __init__(self, tied=False):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))
        if tied:
            self.layers[5].weight = self.layers[0].weight

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x).square(), reduction="mean")


def wrapped(module, accumulation=16):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.01)
    return poptorch.trainingModel(module, options, optimizer)


BATCH = torch.ones(64, 32)


def test_equal_layers_become_equal_stages_and_nothing_has_changed():
    model = wrapped(Deep())
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    random = torch.get_rng_state()
    report = model.planStages(2, BATCH)
    assert report.lines()[0] == 'poptorch.BeginBlock(model.layers[3], "stage1", ipu_id=1)'
    assert report.verdict == "fits"
    assert not model.isCompiled()
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(v, before[n]) for n, v in model.model.state_dict().items())
    assert json.loads(json.dumps(report.data())) == report.data()
    assert re.search(r"1 +layers\.3 .* fits", str(report))


def test_applied_stages_run_and_give_the_same_numbers():
    plain, divided = Deep(), Deep()
    divided.load_state_dict(plain.state_dict())
    whole, parts = wrapped(plain), wrapped(divided)
    parts.planStages(4, BATCH).apply()
    losses = [[model(BATCH).item() for _ in range(3)] for model in (whole, parts)]
    assert losses[0] == losses[1]
    assert parts.placement.stages == parts.placement.ipus == 4
    assert parts.pipelineReport().measured is not None


def test_what_is_tied_runs_on_one_device():
    model = wrapped(Deep(tied=True))
    report = model.planStages(2, BATCH)
    assert report.plan.homes == (0, 1, 0)
    assert "layers.0.weight" in {state.name for state in report.plan.chain.states}
    report.apply()
    model(BATCH)
    assert (model.placement.stages, model.placement.ipus) == (3, 2)


def test_a_module_that_is_called_for_each_of_several_inputs_is_not_cut():
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.each, self.all = torch.nn.Linear(8, 8), torch.nn.Linear(24, 8)
            self.last = torch.nn.Linear(8, 8)

        def forward(self, x):
            x = torch.cat([self.each(part) for part in x.chunk(3, 1)], 1)
            return poptorch.identity_loss(self.last(self.all(x)), reduction="mean")

    model = wrapped(Shared())
    report = model.planStages(2, torch.ones(16, 24))
    assert report.plan.names[1] in ("all", "last")
    with pytest.raises(poptorch.Error, match=r"There are 4 devices, and 3 of them can get a part"):
        model.planStages(4, torch.ones(16, 24))


def test_memory_of_a_stage_is_what_its_tensors_take():
    model = wrapped(Deep())
    plan = model.planStages(2, BATCH, limit="1GiB").plan
    for load in plan.loads:
        parts = {part.role: part.size.expected for part in load.parts}
        parameters = 3 * (32 * 32 + 32) * 4
        assert parts["weights and buffers"] == parts["gradient sums"] == parameters
        # Two moments, and of each of six parameters a number that counts its updates.
        assert parts["optimizer state"] == 2 * parameters + 6 * 8
    # Four rows of 32 numbers go into each layer; of the first stage two micro-batches wait, or in
    # the original three.
    kept = [
        next(part.size for part in load.parts if part.role == "kept for backward")
        for load in plan.loads
    ]
    value = 4 * 32 * 4
    assert kept[0] == Interval(2 * 3 * value, 3 * 3 * value, 3 * 3 * value)
    # The loss needs the last result, too, and perhaps a number.
    assert 4 * value <= kept[1].low == kept[1].high <= 4 * value + 8


def test_a_limit_decides():
    model = wrapped(Deep())
    assert model.planStages(2, BATCH, limit="1MiB").verdict is Verdict.FITS
    assert model.planStages(2, BATCH, limit="10KiB").verdict is Verdict.DOES_NOT_FIT
    with pytest.raises(poptorch.Error, match="'much' is no size"):
        model.planStages(2, BATCH, limit="much")
    with pytest.raises(poptorch.Error, match="one device at least, not on 0"):
        model.planStages(0, BATCH)


def test_a_line_says_how_many_micro_batches_stages_need():
    model = wrapped(Deep(), accumulation=2)
    assert "gradientAccumulation(3)  # or more; 2 now" in str(model.planStages(2, BATCH))
    # The rows of a call depend on it, so that no line lowers it.
    enough = wrapped(Deep(), accumulation=16).planStages(2, BATCH).lines()
    assert not any("gradientAccumulation" in line for line in enough)


def test_without_training_there_is_no_backward():
    options = poptorch.Options().showCompilationProgressBar(False)
    report = poptorch.inferenceModel(Deep().eval(), options).planStages(2, BATCH)
    roles = {part.role for load in report.plan.loads for part in load.parts}
    assert not report.plan.chain.training
    assert "kept for backward" not in roles
    assert "options.deviceIterations(2)  # or more; 1 now" in report.lines()


def test_the_blocks_of_a_model_are_its_stages_on_ipus():
    module = Deep()
    poptorch.BeginBlock(module.layers[2], "middle", ipu_id=1)
    poptorch.BeginBlock(module.layers[4], "end", ipu_id=0)
    report = wrapped(module).fit(BATCH, limit="mk2")
    assert report.plan.homes == (0, 1, 0)
    assert [load.stages for load in report.plan.loads] == [(0, 2), (1,)]
    assert report.verdict == "fits"
    assert "It fits into 2 times mk2 (897 MiB)" in str(report)
    assert len(wrapped(Deep()).fit(BATCH, limit="mk2").plan.loads) == 1


def test_optimizer_state_goes_elsewhere():
    def roles(location):
        options = poptorch.Options().showCompilationProgressBar(False)
        options.TensorLocations.setOptimizerLocation(location)
        module = Deep()
        optimizer = poptorch.optim.Adam(module.parameters(), lr=0.01)
        plan = poptorch.trainingModel(module, options, optimizer).fit(BATCH, limit="mk2").plan
        return {part.role for part in plan.fullest.parts}

    settings = poptorch.TensorLocationSettings
    assert "optimizer state" in roles(settings())
    assert "optimizer state" not in roles(settings().useOnChipStorage(False))


# -- the command ---------------------------------------------------------------------------


def command(*arguments):
    return command_line.main(["stage", *arguments])


def test_the_command_prints_lines_that_run(script, capsys):
    assert command(script, "--ipus", "2", "--", "8") == 0
    out, err = capsys.readouterr()
    assert re.search(
        r'^poptorch\.BeginBlock\(model\.layers\[\d\], "stage1", ipu_id=1\)$', out, re.M
    )
    assert "losses" not in out + err
    assert command(script, "--ipus", "2", "--limit", "1KiB", "--json", "--", "8") == 3
    facts = json.loads(capsys.readouterr().out)
    assert facts["verdict"] == "does not fit"
    assert len(facts["devices"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ipus", "0"), "--ipus 0 leaves nothing to run on"),
        (("--ipus", "9"), "There are 9 devices, and 5 of them can get a part"),
        (("--ipus", "2", "--limit", "mk3"), "'mk3' is no size"),
    ],
)
def test_what_means_nothing_is_an_error(script, capsys, arguments, message):
    assert command(script, *arguments, "--", "8") == 1
    assert message in capsys.readouterr().err
