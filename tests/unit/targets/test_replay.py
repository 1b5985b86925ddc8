"""Programs replayed as captured graphs, with a recorder that needs no GPU."""

import importlib

import pytest
import torch

from abele.program import Role
from abele.step.config import OutputMode, StepConfig
from abele.targets.base import Lowering
from abele.targets.cuda import Cuda
from abele.targets.reference import Reference
from abele.targets.replay import (
    _ON_HOST,
    ENVIRONMENT,
    CudaGraphs,
    Replayed,
    _copy,
    may_be_captured,
    replayed,
)
from conftest import usable
from helpers.models import MODELS
from helpers.runs import assert_same_bits, captured, rule_for, run, started


class HostRecorder:
    """Captures as a GPU does: nothing changes meanwhile, and replays write to the same memory."""

    def __init__(self):
        self.captures = self.replays = self.waits = 0
        self.problem = None

    def on_host(self, like):
        return torch.zeros(like.shape, dtype=like.dtype)

    def wait(self):
        self.waits += 1

    def record(self, work):
        if self.problem is not None:
            raise RuntimeError(self.problem)
        self.captures += 1
        cells = zip(work.__code__.co_freevars, work.__closure__, strict=True)
        if "given" in (seen := {name: cell.cell_contents for name, cell in cells}):
            return self._with_copies(work, seen["given"])
        outputs = self._without_effect(work)

        def replay():
            self.replays += 1
            results = self._results(work)
            for output, result in zip(outputs, results, strict=True):
                output.copy_(result)
            self._capture_of(work)._outputs = outputs

        return replay

    def _with_copies(self, work, given):
        before = [tensor.clone() for tensor in given]
        work()
        for tensor, value in zip(given, before, strict=True):
            tensor.copy_(value)

        def replay():
            self.replays += 1
            work()

        return replay

    def _without_effect(self, work):
        arguments = self._capture_of(work)._arguments
        before = [tensor.clone() for tensor in arguments]
        outputs = self._results(work)
        for tensor, value in zip(arguments, before, strict=True):
            tensor.copy_(value)
        return outputs

    def _results(self, work):
        work()
        return self._capture_of(work)._outputs

    @staticmethod
    def _capture_of(work):
        return next(
            cell.cell_contents
            for cell in work.__closure__
            if hasattr(cell.cell_contents, "_outputs")
        )


class Replaying(Lowering):
    """Interprets programs and replays them."""

    name = "interpreted"

    def __init__(self, recorder):
        self.recorder = recorder

    def why(self, program):
        return "a test says so"

    def compile(self, program):
        return replayed(program, Reference().lowerings[0].compile(program), self.recorder)


@pytest.fixture
def recorder():
    return HostRecorder()


@pytest.fixture
def target(recorder):
    target = Reference()
    target.lowerings = (Replaying(recorder),)
    return target


def trained(name, target, config=None, steps=6):
    model = MODELS[name]
    module = model.fresh()
    session, _ = started(module, model.batch(), rule_for(module, "sgd"), config, target=target)
    return run(session, model.batches(steps))


@pytest.mark.parametrize("name", ["introduction", "embedding and layer norm"])
def test_replays_have_the_bits_of_calls(name, target, recorder):
    assert_same_bits(trained(name, target), trained(name, "reference"))
    assert (recorder.captures, recorder.replays) == (1, 5)


def test_accumulation_and_replicas_are_captured_apart(target, recorder):
    config = StepConfig(gradient_accumulation=2, replicas=2, output_mode=OutputMode.ALL)
    model = MODELS["introduction"]
    results = []
    for each in (target, "reference"):
        module = model.fresh()
        session, _ = started(module, model.batch(), rule_for(module, "sgd"), config, target=each)
        large = [tuple(torch.cat([x] * 4) for x in batch) for batch in model.batches(3)]
        results.append(run(session, large))
    assert_same_bits(*results)
    assert recorder.captures == 2  # a micro-batch, whose state the replicas share, and the update


def test_weights_written_between_replays_count(target, recorder):
    model = MODELS["introduction"]
    module = model.fresh()
    session, _ = started(module, model.batch(), None, target=target)
    before = [session.step(batch)[0].clone() for batch in model.batches(3)]
    session.write_params({name: p * 0 for name, p in module.named_parameters()})
    after = session.step(model.batches(3)[2])[0]
    assert recorder.replays == 3
    assert not torch.equal(before[2], after)


def test_results_and_batches_stay_as_they_were(target):
    model = MODELS["introduction"]
    session, _ = started(model.fresh(), model.batch(), None, target=target)
    batches = model.batches(4)
    copies = [[tensor.clone() for tensor in batch] for batch in batches]
    results = [session.step(batch) for batch in batches]
    kept = [[value.clone() for value in values] for values in results[:3]]
    session.step(batches[0])
    for some, others in ((batches, copies), (results[:3], kept)):
        for one, other in zip(some, others, strict=True):
            assert all(map(torch.equal, one, other))


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("mode", [OutputMode.FINAL, OutputMode.ALL, OutputMode.SUM])
def test_several_steps_of_a_call_are_queued_and_waited_for_together(
    mode, accumulation, target, recorder
):
    config = StepConfig(device_iterations=4, gradient_accumulation=accumulation, output_mode=mode)
    model, trained_models = MODELS["dense"], []
    micro_batches = 4 * accumulation
    large = [tuple(torch.cat([x] * micro_batches) for x in batch) for batch in model.batches(3)]
    for each in (target, "reference"):
        module = model.fresh()
        session, _ = started(module, model.batch(), rule_for(module), config, target=each)
        trained_models.append(run(session, large))
        marks = session.marks
        assert len(marks) == 2 * micro_batches
        assert marks == sorted(marks)
    assert_same_bits(*trained_models)
    assert recorder.captures == (1 if accumulation == 1 else 2)  # and the update
    assert recorder.waits < 3 * micro_batches  # fewer than one for each


@pytest.mark.parametrize("most", [2, 100])
def test_large_results_are_the_callers(most, target, monkeypatch):
    monkeypatch.setattr("abele.targets.replay._SMALL_BYTES", 8)  # the loss is small
    monkeypatch.setattr("abele.targets.replay._MOST_LOCKED", most)
    model, kept = MODELS["introduction"], []
    for each in (target, "reference"):
        module = model.fresh()
        session, _ = started(module, model.batch(), rule_for(module, "sgd"), target=each)
        kept.append([session.step(batch) for batch in model.batches(6)])
    for ours, wanted in zip(*kept, strict=True):
        assert len(ours) == len(wanted) == 2
        assert all(map(torch.equal, ours, wanted))


def test_a_result_that_is_kept_does_not_keep_others_out_of_page_locked_memory(
    target, recorder, monkeypatch
):
    monkeypatch.setattr("abele.targets.replay._SMALL_BYTES", 8)
    monkeypatch.setattr("abele.targets.replay._MOST_LOCKED", 2)
    model = MODELS["introduction"]
    session, _ = started(model.fresh(), model.batch(), None, target=target)
    batch = model.batches(1)[0]
    session.step(batch)  # as usual
    kept = session.step(batch)
    made = []
    on_host = recorder.on_host
    monkeypatch.setattr(recorder, "on_host", lambda like: made.append(1) or on_host(like))
    for _ in range(5):
        session.step(batch)
    assert len(made) == 5
    assert kept[0].isfinite().all()


def test_a_capture_without_copies_takes_over_where_that_with_them_fails(target, recorder):
    def no_memory(like):
        raise RuntimeError("no page-locked memory")

    recorder.on_host = no_memory
    assert_same_bits(trained("introduction", target), trained("introduction", "reference"))
    assert (recorder.captures, recorder.replays) == (1, 5)


@pytest.mark.parametrize("name", sorted(_ON_HOST))
def test_operators_whose_values_the_host_looks_at_exist(name):
    importlib.import_module("poptorch")  # registers all
    packet, overload = name.removeprefix("abele.").split(".")
    assert str(getattr(getattr(torch.ops.abele, packet), overload)) == name


def test_a_program_that_looks_at_values_is_not_captured():
    class Encoded(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.one_hot(x, 4)

    program = captured(Encoded(), (torch.ones(4, dtype=torch.int64),)).programs[0]
    assert not may_be_captured(program)


def test_what_cannot_be_captured_runs_as_before_and_says_so(target, recorder):
    recorder.problem = "operation not permitted\nwhen stream is capturing"
    with pytest.warns(UserWarning, match="cannot be captured.*: operation not permitted. Results"):
        weights = trained("introduction", target)
    assert_same_bits(weights, trained("introduction", "reference"))
    assert recorder.captures == 0


def test_no_more_captures_than_memory_is_meant_for(target, recorder, monkeypatch):
    monkeypatch.setattr("abele.targets.replay._MOST", 1)
    program = captured(torch.nn.Linear(3, 2), (torch.ones(4, 3),)).programs[0]
    compiled = target.lowerings[0].compile(program)
    state = [i for i, slot in enumerate(program.inputs) if slot.role is not Role.INPUT]
    for number in (1.0, 2.0):
        arguments = [torch.full(slot.shape, number) for slot in program.inputs]
        for _ in range(3):
            (output,) = compiled.run(list(arguments))
            assert torch.equal(output, torch.full((4, 2), 3 * number * number + number))
    assert len(state) == 2
    assert (recorder.captures, recorder.replays) == (1, 2)


class Branching(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


@pytest.mark.parametrize(("module", "expected"), [(Branching, False), (torch.nn.Tanh, True)])
def test_what_is_not_captured(module, expected):
    program = captured(module(), (torch.ones(4),)).programs[0]
    plain = Reference().lowerings[0].compile(program)
    assert isinstance(replayed(program, plain, HostRecorder()), Replayed) == expected


def test_the_environment_switches_captures_off(target, recorder, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "0")
    trained("introduction", target)
    assert recorder.captures == 0


def test_captures_on_a_gpu_have_the_bits_of_calls(monkeypatch):
    assert usable("cuda").name == Cuda.name
    replays = []
    record = CudaGraphs.record

    def counted(self, work):
        replay = record(self, work)
        return lambda: (replays.append(1), replay())

    monkeypatch.setattr(CudaGraphs, "record", counted)
    weights = trained("introduction", "cuda")
    assert len(replays) == 5
    monkeypatch.setenv(ENVIRONMENT, "0")
    assert_same_bits(weights, trained("introduction", "cuda"))


COPIED = {
    "rows": torch.randn(64, 784),
    "nothing": torch.empty(0, 3),
    "a number": torch.tensor(3.0),
    "another order": torch.randn(5, 7).t(),
    "a part": torch.randn(9, 7)[2:, 1:5],
    "conjugated": torch.randn(3, 4, dtype=torch.complex64).conj(),
    "negated": torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    "more than a thread copies": torch.arange(1 << 19),
    "truths": torch.tensor([True, False]),
}


@pytest.mark.parametrize("name", COPIED)
def test_rows_are_copied_whatever_they_are(name):
    source = COPIED[name]
    to = torch.full(source.shape, 7, dtype=source.dtype)
    _copy(to, source)
    assert torch.equal(to, source.resolve_conj().resolve_neg())


def test_numbers_of_another_type_are_converted():
    to = torch.empty(3, dtype=torch.float64)
    _copy(to, torch.tensor([1, 2, 3]))
    assert to.tolist() == [1.0, 2.0, 3.0]
