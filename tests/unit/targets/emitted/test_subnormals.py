"""Numbers below 1.2e-38 are zero in emitted code, and nowhere else."""

import threading

import pytest
import torch

from abele.targets.cpu.compiler import compiler
from abele.targets.cpu.emitted.calls import HANDLERS
from abele.targets.cpu.emitted.lowering import Emitted
from abele.targets.translation.pointwise import TYPES
from abele.targets.translation.translate import Translator, _has_subnormals
from helpers.emitted_programs import traced

SMALL = 1e-40  # times one is itself, or zero
MANY = 1 << 20  # elements, so that two threads share them

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def scaled(x, total):
    total.add_(x)
    return x * 1.0000001


def masked(x, total):
    total.add_(x)
    return (x + 1e-45).log()


def normed(x, total):
    total.add_(x)
    return torch.nn.functional.layer_norm(x, x.shape, eps=1e-45)


def program(function, x=None):
    x = torch.ones(4) if x is None else x
    return traced("small", function, [x], [torch.zeros_like(x)]).program


def run(function, x):
    made = program(function, x)
    inputs = [x.clone() if slot.name == "input0" else torch.zeros_like(x) for slot in made.inputs]
    (result,) = Emitted().compile(made).run(inputs)
    return result


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@needs_compiler
def test_emitted_code_takes_them_for_zero_in_all_threads(threads):
    result = run(scaled, torch.full((MANY,), SMALL))
    assert not result.any()


@needs_compiler
def test_plain_pytorch_computes_with_them_afterwards(threads):
    x = torch.full((MANY,), SMALL)
    run(scaled, x)
    assert (x * 1.0000001).all()


@needs_compiler
def test_threads_that_emitted_code_starts_compute_with_them_afterwards():
    x, made = torch.full((MANY,), SMALL), program(scaled, torch.ones(MANY))
    compiled, later = Emitted().compile(made), list[torch.Tensor]()
    inputs = [x if slot.name == "input0" else torch.zeros_like(x) for slot in made.inputs]

    def call():  # a thread that has started no other one yet
        torch.set_num_threads(2)
        compiled.run(inputs)
        later.append(x * 1.0000001)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    (result,) = later
    assert result.all()


@needs_compiler
def test_programs_that_name_one_compute_with_them():
    assert run(masked, torch.zeros(4)).isfinite().all()
    assert not run(normed, torch.ones(4)).any()


def test_what_names_one():
    def names_one(made):
        return Translator(made, HANDLERS, TYPES).subnormals

    assert not names_one(program(scaled))
    assert names_one(program(masked))
    assert names_one(program(normed))
    assert not _has_subnormals(torch.tensor([0.0, 1e-37]))
    assert not _has_subnormals(torch.tensor(3))
    assert _has_subnormals(torch.tensor([1.0, -SMALL]))
