"""Every operator of torch's own database, forward and backward, on ``reference`` and as code."""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from abele import passes
from abele.capture.replacements.portable import portable_functions
from abele.targets.reference import Interpreter
from helpers import emitted_programs, random_operators
from helpers.emitted_operators import program_of
from helpers.emitted_programs import Case

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

# Operators in one file: starting the compiler takes as long as compiling one of them.
TOGETHER = 60
# Named in docs/sharp_edges.md: the number of results depends on values, or last bits differ.
REFUSED = {"cov", "index_fill", "masked_select", "repeat_interleave", "tensor_split"}
OTHER_BITS = {"prod", "masked_fill", "cholesky_solve"}


Tensors = list[torch.Tensor]

# Samples that are looked at for one that is small and has finite gradients.
_MOST = 12


@dataclasses.dataclass(frozen=True)
class Alone:
    """An operator and a sample.

    Attributes:
        name: in torch's database, with that of its variant.
        operator: of the database.
        arguments: of the sample, by position and by name.
    """

    name: str
    operator: Any
    arguments: Any

    @property
    def inputs(self) -> Tensors:
        """Copies of the sample's tensors."""
        return [each.clone() for each in random_operators._tensors(self.arguments)]

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """The results for other tensors, as forward is captured."""
        with portable_functions(training=True, whole_layers=True, widens=True):
            return self.plain(*tensors)

    def plain(self, *tensors: torch.Tensor) -> Tensors:
        """The results of plain PyTorch."""
        given = iter(tensors)
        positional, named = random_operators._mapped(self.arguments, lambda _: next(given))
        return random_operators._tensors(self.operator(*positional, **named))

    def eagerly(self) -> Tensors:
        """Results and the gradients of the sum of their squares, as ``program_of`` has them."""
        leaves = [each.requires_grad_(each.dtype.is_floating_point) for each in self.inputs]
        results = self.plain(*leaves)
        squares = [(each * each).sum() for each in results if each.dtype.is_floating_point]
        total = torch.stack([each.to(squares[0].dtype) for each in squares]).sum()
        wanted = [each for each in leaves if each.requires_grad]
        gradients = torch.autograd.grad(total, wanted, allow_unused=True)
        return [each.detach() for each in (*results, *gradients) if each is not None]


def alone() -> Iterator[Alone]:
    """Every operator whose gradients plain PyTorch computes for one of its samples."""
    for operator in random_operators.operators():
        variant = f" {operator.variant_test_name}" if operator.variant_test_name else ""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = operator.sample_inputs("cpu", torch.float32, requires_grad=False)
            for sample in itertools.islice(samples, _MOST):
                arguments = (sample.input, *sample.args), sample.kwargs
                case = Alone(f"{operator.name}{variant}", operator.op, arguments)
                if random_operators._is_small(sample) and _is_finite(case):
                    yield case
                    break


def _is_finite(case: Alone) -> bool:
    tensors = case.inputs
    if any(each.layout is not torch.strided for each in tensors) or not sum(
        map(torch.numel, tensors)
    ):
        return False
    try:
        return all(bool(each.isfinite().all()) for each in case.eagerly())
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return False


@functools.cache
def programs():
    """Operators with their programs, and the names of those that cannot be traced."""
    traced, refused = [], set()
    for case in alone():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                traced.append((case, program_of(case, case.inputs, gradients=True)))
        except Exception:  # noqa: BLE001 - torch raises what it likes
            refused.add(case.name)
    return traced, refused


def test_every_operator_is_traced_or_refused_by_name():
    traced, refused = programs()
    assert refused <= REFUSED
    assert len(traced) > 400


def test_every_operator_has_the_bits_of_plain_pytorch():
    wrong = set()
    for case, program in programs()[0]:
        torch.manual_seed(42)  # what samples of operators that draw numbers begin with
        expected = case.eagerly()
        torch.manual_seed(42)
        actual = Interpreter().compile(passes.run(program)).run(case.inputs)
        same = len(expected) == len(actual) and all(map(torch.equal, expected, actual))
        wrong |= set() if same else {case.name}
    assert wrong <= OTHER_BITS


@pytest.mark.compiler
def test_every_operator_as_code_computes_what_is_interpreted():
    traced, _ = programs()
    wrong = {}
    for first in range(0, len(traced), TOGETHER):
        few = traced[first : first + TOGETHER]
        cases = [Case(a.name, program, a.inputs, magnifies=True) for a, program in few]
        for outcome in emitted_programs.outcomes(cases):
            difference = None if outcome.declined else outcome.difference()
            wrong |= {outcome.name: difference} if difference else {}
    assert not wrong
