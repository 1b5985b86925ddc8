"""A pipeline computes what plain accumulation computes, bit by bit, whatever crosses its stages."""

import dataclasses
import itertools
import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele.ops.host_call import HostCalls, host_call
from abele.pipeline import Uncuttable
from abele.pipeline.running import Task
from abele.step.config import MeanStrategy, OutputMode, Reduction, StepConfig
from conftest import usable
from helpers.pipelined import at_stage, parts_of, sessions
from helpers.runs import assert_close_by_norm, assert_same_bits, rule_for, run

ROWS, CALLS, MICRO_BATCHES = 3, 3, 5


class Network(nn.Module):
    """Convolutions, then dense layers, on as many stages as asked for; all is returned."""

    def __init__(self, stages=3):
        super().__init__()
        self.at = [index * stages // 4 for index in range(4)]
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3)
        self.fc1, self.fc2 = nn.Linear(96, 12), nn.Linear(12, 10)

    def forward(self, images, labels):
        at_stage(self.at[0])
        x = torch.relu(self.conv1(images))
        at_stage(self.at[1])
        x = torch.relu(self.conv2(x)).flatten(1)
        at_stage(self.at[2])
        x = torch.tanh(self.fc1(x))
        at_stage(self.at[3])
        scores = self.fc2(x)
        return scores, F.cross_entropy(scores, labels)


class Normalised(Network):
    """Statistics of the batch, written in the middle of the pipeline."""

    def __init__(self, stages=3):
        super().__init__(stages)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, images, labels):
        at_stage(0)
        x = self.conv1(images)
        at_stage(1)
        x = torch.relu(self.norm(self.conv2(x))).flatten(1)
        at_stage(2)
        scores = self.fc2(torch.tanh(self.fc1(x)))
        return scores, F.cross_entropy(scores, labels)


class Dropped(Network):
    """Random numbers in two stages, of one stream."""

    def forward(self, images, labels):
        at_stage(0)
        x = F.dropout(torch.relu(self.conv1(images)), 0.3)
        at_stage(1)
        x = F.dropout(self.conv2(x).flatten(1), 0.4)
        x = x + torch.randn_like(x)
        at_stage(2)
        scores = F.dropout(self.fc2(self.fc1(x)), 0.1)
        return scores, F.cross_entropy(scores, labels)


class Tied(nn.Module):
    """The first and the last stage use one matrix, and the middle one is not trained."""

    def __init__(self, stages=3):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.middle = nn.Linear(16, 16).requires_grad_(False)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, images, labels):
        tokens = (images.flatten(1)[:, :5].abs() * 7).long() % 30
        at_stage(0)
        x = self.embedding(tokens)
        at_stage(1)
        x = torch.tanh(self.middle(x)).mean(1)
        at_stage(2)
        scores = self.head(x)
        return scores, F.cross_entropy(scores, labels)


class Entangled(nn.Module):
    """Ways around stages, inputs used late, permuted memory, views, and a stale buffer."""

    def __init__(self, stages=3):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 10)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, images, labels):
        constant = torch.arange(8.0)
        at_stage(0)
        x = self.first(images[:, 0, 0] + constant)
        scaled = x * self.scale.clone() * self.first.weight.mean()
        self.scale.mul_(0.9)
        left, right = scaled.chunk(2, dim=1)
        at_stage(1)
        turned = self.second(x.t().contiguous().t()).t()
        late = images[:, 0, 1] * turned.t()
        at_stage(2)
        joined = torch.cat([right, left], 1) + late + images.sum((1, 2, 3)).unsqueeze(1)
        scores = self.last(joined + x)
        return scores, turned, F.cross_entropy(scores, labels)


NETWORKS = [Network, Normalised, Dropped, Tied, Entangled]


def batches(micro_batches=MICRO_BATCHES, count=CALLS):
    generator = torch.Generator().manual_seed(11)
    rows = ROWS * micro_batches
    return [
        (
            torch.randn(rows, 1, 8, 8, generator=generator),
            torch.randint(0, 10, (rows,), generator=generator),
        )
        for _ in range(count)
    ]


def micro(batch):
    return tuple(tensor[:ROWS] for tensor in batch)


def compared(module, config, rule, stages, given, target="reference"):
    """Both ways, and the pipelined session."""
    piped, plain = sessions(module, micro(given[0]), config, rule, stages, target)
    try:
        return run(piped, given), run(plain, given), piped
    finally:
        piped.close()


@pytest.mark.parametrize(("network", "kind"), [(Network, "sgd"), *((n, "adam") for n in NETWORKS)])
def test_training_gives_the_same_bits(network, kind):
    module = network(3)
    config = StepConfig(gradient_accumulation=MICRO_BATCHES, output_mode=OutputMode.ALL)
    rule = rule_for(module, kind, variable=["lr"])
    actual, expected, _ = compared(module, config, rule, 3, batches())
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 2, 7])
def test_stages_and_micro_batches_in_any_number(stages, micro_batches):
    module = Network(stages)
    # Two updates in each call.
    config = StepConfig(
        gradient_accumulation=max(2, micro_batches), device_iterations=2, output_mode=OutputMode.SUM
    )
    given = batches(2 * config.gradient_accumulation, 2)
    actual, expected, piped = compared(module, config, rule_for(module), stages, given)
    assert_same_bits(actual, expected)
    assert piped.runner.cut.stages == stages
    assert all(part.program is not None for part in piped.runner.cut.parts)


@pytest.mark.parametrize(
    ("network", "mode"),
    [(Network, OutputMode.FINAL), *((each, OutputMode.ALL) for each in NETWORKS)],
)
def test_inference_gives_the_same_bits(network, mode):
    module = network(3)
    config = StepConfig(training=False, device_iterations=6, output_mode=mode)
    actual, expected, piped = compared(module, config, None, 3, batches(6))
    assert_same_bits(actual, expected)
    assert not piped.runner.cut.training


@pytest.mark.parametrize(
    "settings",
    [
        {"mean_strategy": MeanStrategy.RUNNING},
        {"mean_strategy": MeanStrategy.POST_AND_LOSS},
        {"reduction": Reduction.SUM},
        {"replicas": 2, "seed": 5},
        {"seed": 9},
    ],
    ids=str,
)
def test_every_way_to_accumulate(settings):
    module = Dropped()
    config = StepConfig(gradient_accumulation=MICRO_BATCHES, **settings)
    given = batches(MICRO_BATCHES * config.replicas, 2)
    rule = rule_for(module, settings={"loss_scaling": 8.0, "loss_scaling_variable": True})
    actual, expected, _ = compared(module, config, rule, 3, given)
    assert_same_bits(actual, expected)


def test_half_weights_and_accumulators():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8).half() for _ in range(2))

        def forward(self, images, labels):
            at_stage(0)
            x = self.layers[0](images[:, 0, 0].half())
            at_stage(1)
            return F.cross_entropy(self.layers[1](torch.tanh(x)).float(), labels % 8)

    module = Half()
    config = StepConfig(gradient_accumulation=MICRO_BATCHES)
    rule = rule_for(module, settings={"accumulator_dtype": torch.float16})
    actual, expected, _ = compared(module, config, rule, 2, batches())
    assert_same_bits(actual, expected)


def test_work_is_where_the_user_put_it():
    parts, _ = parts_of(
        Network(4),
        micro(batches()[0]),
        StepConfig(gradient_accumulation=7),
        rule_for(Network(4)),
        4,
    )
    layers = ["conv1", "conv2", "fc1", "fc2"]
    for part in parts.parts:
        slots = {slot.name for slot in part.program.inputs}
        own = {f"accumulator.{layers[part.stage]}.{name}" for name in ("weight", "bias")}
        assert {name for name in slots if "accumulator" in name} == (
            own if part.backward else set()
        )
        if not part.backward:
            assert {name.split(".")[0] for name in slots if "weight" in name} == {
                layers[part.stage]
            }
    # Between neighbours one activation and its gradient pass, and nothing else.
    first = parts.parts[0]
    passed = [name for name in parts.parts[1].takes if parts.parts[1].takes[name] == 0]
    assert len(passed) == 1
    assert len(parts.parts[-1].takes.keys() - set(first.gives)) == 1


def test_random_numbers_of_several_stages_are_drawn_in_the_first():
    config = StepConfig(gradient_accumulation=5)
    parts, _ = parts_of(Dropped(), micro(batches()[0]), config, rule_for(Dropped()), 3)
    assert [part.program.uses_random for part in parts.parts] == [True] + [False] * 5


class Shared(Network):
    """One module with statistics in two stages: each call reads what the other wrote."""

    def __init__(self, stages=2):
        super().__init__(stages)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, images, labels):
        at_stage(0)
        x = self.norm(images[:, 0, 0])
        at_stage(1)
        return F.cross_entropy(self.norm(x), labels % 8)


class Chosen(Network):
    """What is drawn in the second stage depends on values, so it cannot be drawn before."""

    def forward(self, images, labels):
        at_stage(0)
        x = F.dropout(self.conv1(images))
        at_stage(1)
        x = self.conv2(x)
        return F.cross_entropy((torch.bernoulli(x.sigmoid()) * x).sum((2, 3)), labels % 6)


class Printing(Network):
    """Prints in two stages would change places."""

    def forward(self, images, labels):
        at_stage(0)
        x = self.conv1(images)
        x = x + host_call([x], "look", f"float32{list(x.shape)}")[0]
        at_stage(1)
        x = self.conv2(x)
        x = x + host_call([x], "look", f"float32{list(x.shape)}")[0]
        return F.cross_entropy(x.sum((2, 3)), labels % 6)


@pytest.mark.parametrize(
    ("network", "settings", "reason"),
    [
        (Shared, {}, r"stage1_forward changes buffer 'norm\.\w+', which stage0_forward reads"),
        (Chosen, {}, "stage0_forward and stage1_forward draw random numbers"),
        (Printing, {}, "stage0_forward and stage1_forward print or call the host"),
        (Network, {"trap_exceptions": True}, "floating-point checks stop a step"),
    ],
)
def test_what_cannot_overlap_is_told(network, settings, reason):
    config = StepConfig(gradient_accumulation=3, **settings)
    module = network(2)
    with pytest.raises(Uncuttable, match=reason):
        parts_of(module, micro(batches()[0]), config, rule_for(module), 2)


def calling(**functions):
    """While open, host calls reach these functions."""
    calls = HostCalls()
    calls.functions |= functions
    return calls.in_use()


class Calling(Network):
    """The second stage calls the host."""

    def forward(self, images, labels):
        at_stage(0)
        x = self.conv1(images)
        at_stage(1)
        x = self.conv2(x)
        x = x + host_call([x], "look", f"float32{list(x.shape)}")[0]
        return F.cross_entropy(x.sum((2, 3)), labels % 6)


def test_each_part_and_the_update_have_a_lowering():
    module = Network(2)
    config = StepConfig(gradient_accumulation=MICRO_BATCHES)
    piped, _ = sessions(module, micro(batches()[0]), config, rule_for(module), 2)
    piped.close()
    parts = [*(program.name for program in piped.runner.cut.programs), "apply"]
    lowerings = piped.executable.key_parts["lowerings"]
    assert lowerings == dict.fromkeys(parts, "interpreter")


def test_an_error_in_a_stage_ends_the_call_and_the_session_goes_on():
    module = Calling()
    config = StepConfig(gradient_accumulation=MICRO_BATCHES)
    piped, plain = sessions(module, micro(batches()[0]), config, rule_for(module), 2)
    seen = []

    def look(x):
        seen.append(threading.current_thread().name)
        if len(seen) == 3:
            raise ZeroDivisionError("in the third micro-batch")
        return x

    with calling(look=look), pytest.raises(ZeroDivisionError, match="in the third micro-batch"):
        piped.step(batches()[0])
    (name,) = set(seen)  # one worker has all of a stage
    assert name.startswith("abele-stage")
    assert not any(total.any() for total in piped.accumulators.values())
    with calling(look=lambda x: x):
        assert_same_bits(run(piped, batches()), run(plain, batches()))
    members = list(piped.runner._crew._pool._threads)
    piped.close()
    assert not any(member.is_alive() for member in members)


def test_stages_work_at_the_same_time():
    """The first stage's second micro-batch waits until the second stage has done its first."""

    class Waiting(Network):
        def forward(self, images, labels):
            at_stage(0)
            x = self.conv1(images)
            x = x + host_call([x], "wait", f"float32{list(x.shape)}")[0]
            at_stage(1)
            return F.cross_entropy(self.conv2(x).sum((2, 3)), labels % 6)

    module = Waiting()
    config = StepConfig(gradient_accumulation=MICRO_BATCHES)
    piped, _ = sessions(module, micro(batches()[0]), config, rule_for(module), 2)
    entered, second_began = itertools.count(), threading.Event()
    ready = piped.runner._pipeline.ready[1, False]

    def wait(x):
        if next(entered) == 1:
            assert second_began.wait(60)
        return x

    def noted(arguments, run=ready.run):
        second_began.set()
        return run(arguments)

    piped.runner._pipeline.ready[1, False] = dataclasses.replace(ready, run=noted)
    with calling(wait=wait):
        piped.step(batches()[0])
    piped.close()
    times = {timed.task: timed for timed in piped.runner.measured.times[0]}
    first, other = times[Task(0, 1)], times[Task(1, 0)]
    assert first.begin < other.end
    assert other.begin < first.end


def test_what_is_measured_adds_up():
    module = Network(3)
    config = StepConfig(gradient_accumulation=7, device_iterations=2)
    _, _, piped = compared(module, config, rule_for(module), 3, batches(14, 1))
    measured = piped.runner.measured
    assert (measured.passages, measured.micro_batches) == (2, 7)
    assert measured.ideal_bubble == pytest.approx(2 / 9)
    assert 0 <= measured.bubble < 1
    assert [stage.held_micro_batches for stage in measured.stages] == [3, 2, 1]
    for index, stage in enumerate(measured.stages):
        # Every micro-batch keeps the same for its backward.
        assert stage.held_bytes % stage.held_micro_batches == 0
        assert stage.held_bytes > 0
        assert stage.forward_ns > 0 < stage.backward_ns
        tasks = [t for t in measured.times[0] if t.task.stage == index]
        assert len(tasks) == 14
        for before, after in itertools.pairwise(tasks):
            assert before.end <= after.begin
    # A mark for the beginning and the end of every micro-step, none over the other.
    assert len(piped.marks) == 28
    assert piped.marks == sorted(piped.marks)


def test_stages_on_a_gpu_have_streams_of_their_own_and_give_the_same():
    usable("cuda")
    module = Network(2)
    config = StepConfig(gradient_accumulation=MICRO_BATCHES, output_mode=OutputMode.ALL)
    actual, expected, piped = compared(module, config, rule_for(module), 2, batches(), "cuda")
    assert_close_by_norm(actual, expected, 1e-4)
    assert piped.runner.measured.window_ns > 0
