"""Who multiplies matrices on a GPU: what is measured, kept and used."""

import contextlib

import pytest
import torch

from abele.errors import CorruptExecutable
from abele.targets.cuda.emitted import blas, kept, lowering
from abele.targets.cuda.emitted.blas import OTHER, USUAL
from abele.targets.cuda.emitted.run import Runner
from abele.targets.translation.operations import constants_of
from helpers.emitted_operators import program_of

HOST = torch.device("cpu")
SMALL, LARGE = torch.randn(4, 3), torch.randn(64, 3)
WEIGHT = torch.randn(3, 5)


def products(small, large, weight):
    return small @ weight, large @ weight, small.sin() @ weight, small.half() @ weight.half()


@pytest.fixture(name="plan")
def _plan():
    program = program_of(products, (SMALL, LARGE, WEIGHT), gradients=False)
    return program, lowering.planned(program)


def test_the_faster_library_is_taken_for_each_size(plan):
    sizes = []

    def clock(work):
        result = work()
        sizes.append((result.dtype, result.shape[0]))
        return [10.0, 9.0] if result.shape[0] == 64 else [10.0, 9.8]

    assert sorted(blas.chosen(plan[1].steps, HOST, clock)) == sorted([USUAL, USUAL, USUAL, OTHER])
    assert len(sizes) == len({*sizes}) == 3  # equal products are measured once


def test_products_that_take_much_memory_are_not_measured(plan, monkeypatch):
    monkeypatch.setattr(blas, "_MOST_BYTES", 10)

    def clock(work):
        raise AssertionError

    assert blas.chosen(plan[1].steps, HOST, clock) == [USUAL] * 4


def test_numbers_of_a_measurement_lie_as_those_of_the_program():
    program = program_of(lambda x, y: x @ y.t(), (SMALL, LARGE[:4]), gradients=False)
    layouts = []

    class Clock:
        def __call__(self, work):
            layouts.extend(
                (each.shape, each.stride()) for each in work.__closure__[0].cell_contents
            )
            return [1.0, 1.0]

    blas.chosen(lowering.planned(program).steps, HOST, Clock())
    assert layouts == [((4, 3), (3, 1)), ((3, 4), (1, 3))]


def test_each_product_is_computed_by_its_library(plan, monkeypatch):
    program, planned = plan
    used, calls = [], []

    @contextlib.contextmanager
    def using(name):
        used.append(name)
        yield

    class Kernels:
        def use(self):
            pass

        def launch(self, *arguments):
            calls.append(arguments)

    monkeypatch.setattr(blas, "using", using)
    constants = constants_of(program, planned.translation.constants)
    names = [OTHER, USUAL, OTHER, USUAL]
    steps = planned.translation, planned.steps, planned.freed
    runner = Runner(*steps, [False] * 3, constants, Kernels(), HOST, names)
    runner.run([SMALL.clone(), LARGE.clone(), WEIGHT.clone()])
    assert [each for each in used if each is not None] == names
    assert calls


def test_what_is_kept_comes_back_in_its_pieces():
    for names, codes in (([], []), ([USUAL, OTHER], [b"one", b"three"])):
        assert kept.decoded(kept.encoded(names, codes), len(names)) == (names, codes)


@pytest.mark.parametrize(
    "damage",
    [
        lambda code: code[:-1],
        lambda code: code + bytes(8),
        lambda code: b"something else",
        lambda code: code[: len(b"abele kernels\n")],
        lambda code: code.replace(b"cublaslt", b"magmablt"),
        lambda code: code.replace(b"[", b"{"),
        lambda code: kept.encoded([USUAL], [b"one"]),
    ],
)
def test_damage_of_what_is_kept_is_noticed(damage):
    code = kept.encoded([USUAL, OTHER], [b"one", b"three"])
    with pytest.raises(CorruptExecutable, match="kernels of a program"):
        kept.decoded(damage(code), 2)


class Switch:
    """Torch's switch of libraries, where it is built with both."""

    def __init__(self):
        self.names = ["default"]

    def __call__(self, name=None):
        if name is not None:
            self.names.append(name)
        return self.names[-1]


def test_the_library_is_the_users_again_afterwards(monkeypatch, capfd):
    switch = Switch()
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", switch)
    blas._tell_nobody_that_it_is_experimental.cache_clear()
    with blas.using(None):
        assert switch.names == ["default"]
    with contextlib.suppress(KeyError), blas.using(OTHER):
        assert switch() == OTHER
        raise KeyError
    assert switch() == "default"
    assert capfd.readouterr().err == ""
