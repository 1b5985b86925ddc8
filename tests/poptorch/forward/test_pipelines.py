"""Pipelined models: when their stages overlap, that numbers stay, and what is told about them."""

import json
import signal

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from abele import processor
from abele.pipeline import PipelineRunner
from abele.report import read_run
from helpers.reported import words
from helpers.wrapping import inference, options, sgd

BLOCKS = ("features", "middle", "scores")
ROWS, STAGES, ACCUMULATION = 4, 3, 6


class Classifier(torch.nn.Module):
    """Three blocks on three devices."""

    def __init__(self, annotate=True):
        super().__init__()
        torch.manual_seed(0)
        self.conv = torch.nn.Conv2d(1, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.middle = torch.nn.Linear(4 * 36, 16)
        self.last = torch.nn.Linear(16, 5)
        if annotate:
            poptorch.BeginBlock(self.conv, "features", ipu_id=0)
            poptorch.BeginBlock(self.middle, "middle", ipu_id=1)
            poptorch.BeginBlock(self.last, "scores", ipu_id=2)

    def forward(self, x, labels=None):
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        x = F.dropout(torch.tanh(self.middle(x)), 0.2, self.training)
        scores = self.last(x)
        return scores if labels is None else (scores, F.cross_entropy(scores, labels))


def batch(micro_batches=ACCUMULATION):
    generator = torch.Generator().manual_seed(1)
    rows = ROWS * micro_batches
    images = torch.randn(rows, 1, 8, 8, generator=generator)
    return images, torch.randint(0, 5, (rows,), generator=generator)


def quiet(**settings):
    return options(autoRoundNumIPUs=True, **settings)


def wrapped(model, **settings):
    made = quiet(gradientAccumulation=ACCUMULATION, randomSeed=3, **settings)
    return poptorch.trainingModel(model, made, poptorch.optim.Adam(model.parameters(), lr=0.01))


def trained(model, calls=3, **settings):
    trainer = wrapped(model, **settings)
    return trainer, [trainer(*batch())[1] for _ in range(calls)]


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch):
    """Whatever the machine has."""
    monkeypatch.setattr(processor, "cores", lambda: 2)


def test_a_pipelined_model_trains_to_the_same_bits():
    pipelined, losses = trained(Classifier())
    plain, expected = trained(Classifier(annotate=False))
    assert [float(loss) for loss in losses] == [float(loss) for loss in expected]
    for name, value in plain.model.state_dict().items():
        assert torch.equal(pipelined.model.state_dict()[name], value), name
    actual = pipelined.pipelineReport()
    assert actual.pipelining.names == BLOCKS
    assert actual.measured.micro_batches == ACCUMULATION
    assert plain.pipelineReport().pipelining.stages == 1


def test_inference_is_a_pipeline_too():
    model = Classifier().eval()
    runner = poptorch.inferenceModel(model, quiet(deviceIterations=5))
    images, _ = batch(5)
    with torch.no_grad():
        expected = torch.cat([model(part) for part in images.split(ROWS)])
    assert torch.equal(runner(images), expected)
    assert isinstance(runner._executable.session.runner, PipelineRunner)


@pytest.mark.parametrize(
    ("settings", "environment", "reason"),
    [
        ({}, "sequential", "ABELE_PIPELINE=sequential asks for it"),
        ({"setExecutionStrategy": poptorch.ShardedExecution()}, "", "its strategy is Sharded"),
        (
            {
                "setExecutionStrategy": poptorch.SerialPhasedExecution(
                    "features", "middle", "scores"
                )
            },
            "workers",
            "its strategy is SerialPhasedExecution",
        ),
    ],
    ids=["environment", "sharded", "phased"],
)
def test_what_runs_sequentially_is_told_once(settings, environment, reason, monkeypatch, caplog):
    monkeypatch.setenv("ABELE_PIPELINE", environment)
    trainer, _ = trained(Classifier(), 2, **settings)
    told = [record.message for record in caplog.records if "runs sequentially" in record.message]
    strategy = "its strategy" in reason
    assert len(told) == (0 if strategy else 1)
    assert all(reason in text for text in told)
    assert reason in str(trainer.pipelineReport())
    assert not isinstance(trainer._executable.session.runner, PipelineRunner)


def test_one_core_runs_one_program_unless_told_otherwise(monkeypatch, caplog):
    monkeypatch.setattr(processor, "cores", lambda: 1)
    trainer, _ = trained(Classifier(), 1)
    assert "may use one core only" in trainer.pipelineReport().sentence()
    assert "because this process may use one core only" in caplog.text
    monkeypatch.setenv("ABELE_PIPELINE", "workers")
    insisting, _ = trained(Classifier(), 1)
    assert insisting.pipelineReport().pipelining.cut is not None


def test_a_wrong_choice_is_refused(monkeypatch):
    monkeypatch.setenv("ABELE_PIPELINE", "fast")
    with pytest.raises(poptorch.Error, match=r"ABELE_PIPELINE='fast' was found. Set it to one of"):
        trained(Classifier(), 1)


def test_a_model_that_cannot_be_cut_says_why_and_trains(caplog):
    class Printing(Classifier):
        def forward(self, x, labels):
            x = torch.relu(self.norm(self.conv(poptorch.ipu_print_tensor(x, "images"))))
            x = poptorch.ipu_print_tensor(torch.tanh(self.middle(x.flatten(1))), "middle")
            scores = self.last(x)
            return scores, F.cross_entropy(scores, labels)

    trainer, _ = trained(Printing(), 1)
    reason = "print or call the host, and at the same time"
    assert reason in str(trainer.pipelineReport())
    assert "runs sequentially, because" in caplog.text


def test_the_report_is_a_table_with_a_picture():
    trainer = wrapped(Classifier())
    with pytest.raises(poptorch.Error, match="There is no pipeline report yet"):
        trainer.pipelineReport()
    trainer.compile(*batch())
    assert "Times come with the first call" in str(trainer.pipelineReport())
    trainer(*batch())
    result = trainer.pipelineReport()
    lines = str(result).splitlines()
    assert lines[0].split()[:2] == ["stage", "blocks"]
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["0", "features"],
        ["1", "middle"],
        ["2", "scores"],
    ]
    assert "25% if all stages were equally fast" in lines[4]
    assert [line.split()[1] for line in lines[5:]] == ["0", "1", "2"]
    for line in lines[5:]:
        assert set(line.split()[2]) <= set("012345abcdef.")
    data = json.loads(json.dumps(result.as_data()))
    parameters = sum(stage["state_bytes"]["parameter"] for stage in data["stages"])
    assert parameters == sum(p.numel() * 4 for p in trainer.model.parameters())
    assert [stage["held_micro_batches"] for stage in data["stages"]] == [3, 2, 1]
    assert data["ideal_bubble"] == pytest.approx(2 / 8)
    assert 0 <= data["bubble"] < 1


def test_files_of_the_report_tell_of_the_pipeline(tmp_path):
    trainer = wrapped(Classifier(), enableProfiling=str(tmp_path))
    trainer(*batch())
    trainer.destroy()
    shown = read_run(tmp_path / "training").pipeline
    assert shown.stages[1] == "middle"
    assert len([task for task in shown.tasks if not task.backward]) == STAGES * ACCUMULATION
    assert len(shown.tasks) == 2 * STAGES * ACCUMULATION
    assert {each.stage for each in shown.tasks} == {0, 1, 2}
    assert all(0 <= each.begin <= each.end for each in shown.tasks)
    text = words(tmp_path / "training" / "report.html")
    assert "middle" in text
    assert "In the latest call 6 micro-batches went through 3 stages in" in text


def test_a_saved_pipeline_goes_on_where_it_was(tmp_path):
    trainer, _ = trained(Classifier(), 2)
    path = tmp_path / "model.poptorch"
    trainer.save(path)
    expected = trainer(*batch())
    loaded = poptorch.load(path)
    for actual, wanted in zip(loaded(*batch()), expected, strict=True):
        assert torch.equal(actual, wanted)
    assert isinstance(loaded._executable.session.runner, PipelineRunner)


def test_anchors_of_all_stages_hold_the_same():
    class Watched(Classifier):
        pass

    values = []
    for annotate in (True, False):
        names = wrapped(Watched(annotate))
        names.compile(*batch())
        wanted = [n for n in names.getTensorNames() if "conv" in n or "Gradient___last" in n][:4]
        opts = quiet(gradientAccumulation=ACCUMULATION, randomSeed=3)
        for name in wanted:
            opts.anchorTensor(name, name, poptorch.OutputMode.All)
        model = Watched(annotate)
        trainer = poptorch.trainingModel(model, opts, sgd(model))
        trainer(*batch())
        assert isinstance(trainer._executable.session.runner, PipelineRunner) is annotate
        values.append({name: trainer.getAnchoredTensor(name) for name in wanted})
    assert values[0].keys() == values[1].keys()
    assert len(values[0]) == 4
    for name, value in values[0].items():
        assert torch.equal(value, values[1][name]), name


def test_recomputation_keeps_less_for_backward():
    results = []
    for mode in (0, 3):
        made = quiet(gradientAccumulation=ACCUMULATION, randomSeed=3)
        made._Popart.set("autoRecomputation", mode)
        model = Classifier()
        trainer = poptorch.trainingModel(model, made, sgd(model))
        loss = trainer(*batch())[1]
        stages = trainer.pipelineReport().measured.stages
        results.append((stages[0].held_bytes, float(loss), model.conv.weight.detach().clone()))
    assert results[1][0] < results[0][0]
    assert results[1][1] == results[0][1]
    assert torch.equal(results[0][2], results[1][2])


def test_destroying_ends_the_workers():
    trainer, _ = trained(Classifier(), 1)
    workers_of = list(trainer._executable.session.runner._crew._pool._threads)
    assert [member.is_alive() for member in workers_of] == [True] * STAGES
    trainer.destroy()
    assert not any(member.is_alive() for member in workers_of)


def test_times_of_a_pipelined_call_are_those_of_the_call():
    runner = inference(lambda x: _two_blocks(x), deviceIterations=4, logCycleCount=True)
    runner(torch.ones(8, 2))
    assert isinstance(runner._executable.session.runner, PipelineRunner)
    assert runner.cycleCount() > 0
    least, most, mean = runner.getLatency()
    assert 0 < least <= mean <= most
    assert runner.cycleCount() / 1e9 < most


def _two_blocks(x):
    with poptorch.Block("first", 0):
        x = x + 1
    with poptorch.Block("second", 1):
        return x * 2


class Plain(torch.nn.Module):
    """Two blocks without random numbers and statistics."""

    def __init__(self):
        super().__init__()
        self.first = poptorch.BeginBlock(torch.nn.Linear(8, 8), "first", ipu_id=0)
        self.second = poptorch.BeginBlock(torch.nn.Linear(8, 3), "second", ipu_id=1)

    def forward(self, x, labels):
        return F.cross_entropy(self.second(torch.tanh(self.first(x))), labels)


def test_ctrl_c_leaves_complete_updates_only():
    def interrupted(number, frame):
        raise KeyboardInterrupt

    def train_for_ever():
        while True:
            trainer(x, labels)

    model = Plain()
    made = quiet(gradientAccumulation=ACCUMULATION)
    trainer = poptorch.trainingModel(model, made, sgd(model))
    x, labels = torch.randn(ACCUMULATION, 8), torch.randint(0, 3, (ACCUMULATION,))
    trainer(x, labels)
    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        for seconds in (0.01, 0.03, 0.08):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            with pytest.raises(KeyboardInterrupt):
                train_for_ever()
            undisturbed = Plain()
            undisturbed.load_state_dict(model.state_dict())
            other = poptorch.trainingModel(undisturbed, made, sgd(undisturbed))
            assert torch.equal(trainer(x, labels), other(x, labels))
            assert torch.equal(model.first.weight, undisturbed.first.weight)
    finally:
        signal.signal(signal.SIGALRM, before)
