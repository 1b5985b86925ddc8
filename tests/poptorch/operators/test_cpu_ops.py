"""poptorch.CPU: code on the host in the middle of a program."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import inference, options, rows, scorer, sgd, trainer, weights
from poptorch._forward import cpu_op


def doubled(x):
    """Something no program could capture: it reads a value."""
    return x * 2 if x.sum().item() >= 0 else x * 0


def test_the_callable_runs_each_time_on_the_values_of_the_run():
    op = poptorch.CPU(doubled, "doubled")
    wrapped = inference(lambda x: op(x) + 1)
    assert wrapped(torch.ones(2)).tolist() == [3.0, 3.0]
    assert wrapped(-torch.ones(2)).tolist() == [1.0, 1.0]
    assert [each.tolist() for each in op.inputs] == [[-1.0, -1.0]]
    assert (op.in_shapes, op.out_shapes) == ([torch.Size([2])], [torch.Size([2])])


def test_it_runs_once_with_zeros_at_capture_and_not_on_ipu():
    seen = []

    def look(x):
        seen.append((x.clone(), poptorch.isRunningOnIpu()))
        return x

    op = poptorch.CPU(look, "look")
    wrapped = inference(lambda x: op(x) + 1, deviceIterations=2)
    wrapped.compile(torch.ones(4, 3))
    assert [(x.tolist(), on_ipu) for x, on_ipu in seen] == [([[0.0] * 3] * 2, False)]
    wrapped(torch.ones(4, 3))
    assert [x.shape for x, _ in seen[1:]] == [(2, 3), (2, 3)]


def test_several_results_are_a_list_and_other_arguments_are_constants():
    def split(x, factor, y=None, name=""):
        return x * factor, (y.sum() if name == "sum" else None)

    op = poptorch.CPU(split, "split")
    kinds = []

    def forward(x, y):
        results = op(x, 3.0, y=y, name="sum")
        kinds.append(type(results))
        return results

    output = inference(forward)(torch.ones(2), torch.tensor([1, 2, 3]))
    assert kinds == [list]
    assert [each.tolist() for each in output] == [[3.0, 3.0], 6]


def test_tensors_in_containers_are_inputs_too():
    op = poptorch.CPU(lambda parts, by: parts["x"] * by + parts["more"][0], "nested")
    wrapped = inference(lambda x: op({"x": x, "more": [x + 1]}, 2))
    for value in (1.0, 3.0):
        assert wrapped(torch.full((2,), value)).tolist() == [3 * value + 1] * 2


def test_a_module_keeps_its_weights_and_needs_no_gradient():
    model = scorer()

    class Nested(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = model.fc
            self.host = poptorch.CPU(self.fc, "fc")

        def forward(self, x):
            return self.host(x)

    nested = Nested()
    assert not any(p.requires_grad for p in nested.parameters())
    x, _ = rows(3)
    wrapped = poptorch.inferenceModel(nested, options())
    assert torch.equal(wrapped(x), model.fc(x))
    with torch.no_grad():
        model.fc.weight.zero_()
    assert torch.equal(wrapped(x), model.fc.bias.expand(3, 3))


def test_calls_of_one_object_and_of_several_are_told_apart():
    up, down = poptorch.CPU(lambda x, by=1: x + by, "up"), poptorch.CPU(lambda x: -x, "down")
    wrapped = inference(lambda x: down(up(up(x), by=10)))
    other = inference(lambda x: poptorch.CPU(lambda y: y * 7, "up")(x))
    assert wrapped(torch.ones(1)).item() == -12.0
    assert other(torch.ones(1)).item() == 7.0
    assert wrapped(torch.ones(1)).item() == -12.0


def test_two_objects_with_one_id_are_refused():
    one, two = (poptorch.CPU(lambda x: x, "same") for _ in range(2))
    with pytest.raises(poptorch.Error, match=r"have the ID 'same'\. An ID must be unique"):
        inference(lambda x: one(x) + two(x))(torch.ones(1))


def test_training_treats_the_results_as_constants():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = scorer().fc
            self.host = poptorch.CPU(doubled, "doubled")

        def forward(self, x, target):
            scores = self.fc(x)
            return F.mse_loss(scores + self.host(scores), target)

    x, target = rows(4)
    expected = scorer()
    optimizer = sgd(expected)
    scores = expected.fc(x)
    F.mse_loss(scores + doubled(scores).detach(), target).backward()
    optimizer.step()
    model = Model()
    trainer(model)(x, target)
    assert torch.equal(weights(model), weights(expected))


def test_what_the_callable_raises_reaches_the_caller():
    def fail(x):
        if x.sum() > 0:
            raise LookupError("on the host")
        return x

    op = poptorch.CPU(fail, "fail")
    wrapped = inference(lambda x: op(x))
    assert wrapped(torch.zeros(1)).item() == 0
    with pytest.raises(LookupError, match="on the host"):
        wrapped(torch.ones(1))
    assert wrapped(torch.zeros(1)).item() == 0


def test_other_shapes_than_at_capture_are_refused():
    op = poptorch.CPU(lambda x: x[: 1 + int(x[0])], "grows")
    wrapped = inference(lambda x: op(x))
    with pytest.raises(poptorch.Error, match=r"'grows' returned float32\[2\], and float32\[1\]"):
        wrapped(torch.ones(3))


def called(result):
    """Runs a forward whose host call returns ``result``."""
    return lambda: inference(lambda x: poptorch.CPU(lambda y: result, "op")(x))(torch.ones(1))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        *((called(each), "Return a tensor, or a list or tuple") for each in (None, 1.0, [2])),
        (called([]), "'op' returned no tensor"),
        *((lambda i=i: poptorch.CPU(doubled, i), "text that is not empty") for i in (1, None, "")),
        (lambda: poptorch.CPU("text", "text"), "'text', which cannot be called"),
    ],
)
def test_mistakes_are_named(act, words):
    with pytest.raises(poptorch.Error, match=words):
        act()


def test_on_the_host_it_is_a_plain_call():
    assert poptorch.CPU(lambda x, by: x + by, "add")(torch.ones(1), by=2).item() == 3.0
    op = poptorch.CPU(torch.neg, "neg")
    with pytest.raises(poptorch.Error, match="no meaning outside of a wrapped forward"):
        op.registerPersistentData()


def test_capturing_leaves_nothing_behind():
    wrapped = inference(lambda x: poptorch.CPU(torch.neg, "neg")(x))
    wrapped(torch.ones(1))
    assert cpu_op._calls.get() is None


@pytest.mark.parametrize("trapped", [False, True])
def test_call_that_host_code_stops_keeps_its_updates_and_leaves_no_sums(trapped):
    failing = []

    def on_host(x):
        if failing and failing.pop():
            raise ValueError("no more")
        return x

    def wrapped_with(function):
        model = scorer()
        stage = poptorch.CPU(function, "stage")
        model.register_forward_pre_hook(lambda module, args: (stage(args[0]), args[1]))
        settings = options(deviceIterations=2, gradientAccumulation=2)
        settings.Precision.enableFloatingPointExceptions(trapped)
        return poptorch.trainingModel(model, settings, sgd(model))

    stopped, plain = wrapped_with(on_host), wrapped_with(lambda x: x)
    first, second = rows(8), rows(8, seed=2)
    stopped.compile(*first)
    failing[:] = [True, False, False, False]  # in the second half of the second update
    with pytest.raises(ValueError, match="no more"):
        stopped(*first)
    # Two of four micro-batches were an update.
    half = poptorch.trainingModel(model := scorer(), options(gradientAccumulation=2), sgd(model))
    half(first[0][:4], first[1][:4])
    assert torch.equal(weights(stopped.model), weights(model))
    plain.load_state_dict(model.state_dict())
    assert torch.equal(stopped(*second)[0], plain(*second)[0])
    assert torch.equal(weights(stopped.model), weights(plain.model))


PROGRAM = """
import json, sys, torch, poptorch
sys.path[:0] = sys.argv[2:]
from helpers.wrapping import Calls, options
torch.set_num_threads(1)

def host(x):
    if x.max() > 5:
        raise LookupError("too large")
    return x.flip(0), x.sum()

op = poptorch.CPU(host, "flip")

def forward(self, x):
    flipped, total = op(poptorch.ipu_print_tensor(x * self.weight, "scaled"))
    return flipped + total

made = options(enableExecutableCaching=sys.argv[1])
wrapped = poptorch.inferenceModel(Calls(forward), made)
result = wrapped(torch.tensor([1.0, 2.0])).tolist()
try:
    wrapped(torch.tensor([10.0, 2.0]))
except LookupError as failure:
    print(json.dumps([wrapped.build_record.cache, wrapped.target, result, str(failure)]))
"""


def test_no_result_at_all_is_refused():
    with pytest.raises(poptorch.Error, match="'none' returned no tensor"):
        inference(lambda x: poptorch.CPU(lambda y: [], "none")(x))(torch.ones(1))


@pytest.mark.parametrize("identity", [1, None, ""])
def test_an_id_has_to_be_text(identity):
    with pytest.raises(poptorch.Error, match="must be a text that is not empty"):
        poptorch.CPU(doubled, identity)


@pytest.mark.thorough
@pytest.mark.compiler
def test_a_new_process_finds_the_callable_of_a_cached_executable(tmp_path):
    said = []
    for _ in range(2):
        environment = os.environ | {"ABELE_TARGET": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                PROGRAM,
                str(tmp_path),
                str(Path(__file__).parents[2]),
            ],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "scaled: (2.0000, 4.0000)" in done.stderr
        said.append(json.loads(done.stdout.splitlines()[-1]))
    assert said[0] == ["miss", "cpu", [10.0, 8.0], "too large"]
    assert said[1] == ["hit", *said[0][1:]]
