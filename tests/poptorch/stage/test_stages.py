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
try:
    losses = [trainer(x, target).item() for _ in range(3)]
except Exception:
    print("caught")
    raise
print("losses", losses)
print("stages", trainer.placement.stages)
print("still", [hook for hook in model.layers[3]._forward_pre_hooks.values()])
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


@pytest.mark.parametrize(("limit", "element"), [("1GiB", 8), ("mk2", 4)])
def test_ipus_keep_numbers_of_64_bits_in_32(limit, element):
    model = Deep()
    model.register_buffer("scale", torch.ones(32, dtype=torch.float64))
    model.layers[0].register_forward_hook(lambda module, given, y: (y * model.scale).float())
    plan = wrapped(model).planStages(2, BATCH, limit=limit).plan
    (scale,) = (state for state in plan.chain.states if state.name == "scale")
    assert scale.weight == 32 * element
    assert {value.size for value in plan.chain.values} == {4 * 32 * 4, 4 * 32 * element, 4}


def test_a_limit_decides():
    model = wrapped(Deep())
    assert model.planStages(2, BATCH, limit="1MiB").verdict is Verdict.FITS
    assert model.planStages(2, BATCH, limit="10KiB").verdict is Verdict.DOES_NOT_FIT
    with pytest.raises(poptorch.Error, match="'much' is no size"):
        model.planStages(2, BATCH, limit="much")
    with pytest.raises(poptorch.Error, match="one device at least, not on 0"):
        model.planStages(0, BATCH)


def test_measured_times_replace_modelled_ones_and_weights_stay():
    model = wrapped(Deep())
    before = {name: value.clone() for name, value in model.model.state_dict().items()}
    report = model.planStages(2, BATCH, measure=True)
    assert report.plan.measured
    assert all(time.forward > 0 and time.backward > 0 for time in report.plan.times)
    assert not model.isCompiled()
    assert all(torch.equal(v, before[n]) for n, v in model.model.state_dict().items())
    assert "(measured)" in str(report)


def test_too_few_micro_batches_are_refused_where_stages_would_run():
    model = wrapped(Deep(), accumulation=2)
    assert "gradientAccumulation(3)  # or more; 2 now" in str(model.planStages(2, BATCH))
    # The rows of a call depend on it, so that no line lowers it.
    enough = wrapped(Deep(), accumulation=16).planStages(2, BATCH).lines()
    assert not any("gradientAccumulation" in line for line in enough)
    with pytest.raises(poptorch.Error, match=r"2 stages need 3 .*gradientAccumulation is 2"):
        model.planStages(2, BATCH, measure=True)


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
    assert len(wrapped(Deep()).fit(BATCH, limit="mk2x3").plan.loads) == 3
    assert len(wrapped(Deep()).fit(BATCH, limit="mk2").plan.loads) == 1


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
    assert "caught" not in out + err
    assert command(script, "--ipus", "2", "--limit", "1KiB", "--json", "--", "8") == 3
    facts = json.loads(capsys.readouterr().out)
    assert facts["verdict"] == "does not fit"
    assert len(facts["devices"]) == 2


@pytest.mark.parametrize("more", [(), ("--measure",)])
def test_the_command_runs_the_program_in_stages(script, capsys, more):
    assert command(script, "--ipus", "4", "--run", *more, "--", "8") == 0
    out, err = capsys.readouterr()
    assert "stages 4" in out
    assert "still [BeginBlock(user_id=old, ipu_id=1)]" in out
    assert "It fits into 4 times mk2" in err
    told = [line for line in err.splitlines() if line.startswith("abele stage: ")]
    assert told[0] == "abele stage: capturing the model"
    assert re.fullmatch(r"abele stage: dividing it \(parts: \d+, devices: 4\)", told[1])
    runs = "abele stage: compiling 4 stages and running them, 1 of at most 3"
    assert told[2:3] == ([runs] if more else [])


@pytest.mark.usefixtures("forks")
def test_such_a_process_runs_in_stages(script, tmp_path, capfd):
    parent = tmp_path / "parent.py"
    twice = "for _ in range(2):\n    subprocess.run([sys.executable, *sys.argv[1:]], check=True)\n"
    parent.write_text(f"import subprocess, sys\n{twice}sys.exit(5)\n")
    with pytest.raises(SystemExit, match="5"):
        command(str(parent), "--ipus", "4", "--run", "--", script, "8")
    out, err = capfd.readouterr()
    assert re.findall(r"^stages (\d)$", out, re.M) == ["4", "2"]  # the second one is not asked
    assert err.count("It fits into 4 times mk2") == 1


def test_stages_that_cannot_run_say_why_and_the_program_ends(script, capsys):
    assert command(script, "--ipus", "4", "--run", "--", "2") == 1
    out, err = capsys.readouterr()
    assert "abele stage: 4 stages need 7 micro-batches" in err
    assert "losses" not in out
    assert "caught" not in out


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
