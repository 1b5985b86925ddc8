"""Every module and optimizer of torch's own databases, on ``reference`` and as code."""

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from abele.errors import AbeleError
from helpers import emitted_programs, random_operators, runs
from helpers.random_networks import Network
from helpers.wrapping import Scorer, options, rows

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
# Programs in one file: starting the compiler takes as long as compiling one of them.
TOGETHER = 40
REFUSED = {"nn.CTCLoss": 'reduction="none"'}
# A vector without reduction: torch's fake tensor has one dimension, its kernel's result has none.
TORCH_IS_WRONG = {"nn.MultiLabelMarginLoss 6"}
# Averages of all batches ask for their number.
REFUSED_NORMS = "momentum=None"


# Inputs of each module, spread over those of the database: some have hundreds.
_INPUTS = 8


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer and its arguments.

    Attributes:
        name: in torch's database, with a description of the arguments.
        kind: the class.
        arguments: by name.
    """

    name: str
    kind: type[torch.optim.Optimizer]
    arguments: dict[str, Any]


class _Trained(nn.Module):
    """A module whose floating inputs are scaled by parameters, and a loss of its results."""

    def __init__(self, inner: nn.Module, arguments: Any):
        super().__init__()
        self.inner, self._arguments = inner, arguments
        first = random_operators._tensors(arguments)[:1]  # gradients of targets are seldom defined
        self.scales = nn.ParameterList(
            nn.Parameter(torch.tensor(0.875)) for each in first if each.dtype.is_floating_point
        )

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return the results and, last, the sum of squares of the floating ones."""
        scaled = [x * s for x, s in zip(tensors, self.scales, strict=False)]
        given = iter([*scaled, *tensors[len(scaled) :]])
        positional, named = random_operators._mapped(self._arguments, lambda _: next(given))
        results = random_operators._tensors(self.inner(*positional, **named))
        floating = [each.flatten() for each in results if each.dtype.is_floating_point]
        joined = torch.cat(floating)
        return [*results, F.mse_loss(joined, torch.zeros_like(joined), reduction="sum")]


def database_modules() -> Iterator[tuple[str, Network]]:
    """Yield the name and a trainable form of each module and inputs that eager PyTorch trains."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        torch.manual_seed(0)
        inputs = list(
            info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
            )
        )
        for i in range(0, len(inputs), -(-len(inputs) // _INPUTS)):
            torch.manual_seed(i)
            built, call = inputs[i].constructor_input, inputs[i].forward_input
            arguments = call.args, call.kwargs
            inner = info.module_cls(*built.args, **built.kwargs).train()
            batch = [each.detach().clone() for each in random_operators._tensors(arguments)]
            made = Network(_Trained(inner, arguments), batch, "sgd", [info.name])
            if _trains(made):
                yield f"{info.name} {i}", made


def _trains(made: Network) -> bool:
    if not all(each.layout is torch.strided for each in made.batch):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = made.module(*(each.clone() for each in made.batch))[-1]
            gradients = torch.autograd.grad(loss, list(made.module.parameters()), allow_unused=True)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return False
    return all(bool(each.isfinite().all()) for each in (loss, *gradients) if each is not None)


def optimizers() -> Iterator[Optimizer]:
    """Yield each optimizer with each set of arguments that torch tests it with."""
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for each in info.optim_inputs_func(device="cpu"):
            yield Optimizer(f"{info.name}, {each.desc}", info.optim_cls, each.kwargs)


def modules():
    return [
        (name, made)
        for name, made in database_modules()
        if name not in TORCH_IS_WRONG and REFUSED_NORMS not in str(made.module.inner)
    ]


def test_every_module_trains_with_the_bits_of_plain_pytorch():
    wrong, count = {}, 0
    for name, made in modules():
        plain, batches = copy.deepcopy(made.module), [made.batch] * 2
        try:
            session, _ = runs.started(made.module, made.batch, runs.rule_for(made.module, lr=1e-6))
        except AbeleError as error:
            if REFUSED.get(made.layers[0], "?") not in str(error):
                wrong[name] = str(error)
            continue
        actual = runs.run(session, batches)
        optimizer = torch.optim.SGD(plain.parameters(), lr=1e-6, momentum=0.9)
        expected = runs.run_eagerly(plain, optimizer, batches)
        count += 1
        try:
            runs.assert_same_bits(actual, expected)
        except AssertionError as error:
            wrong[name] = str(error)
    assert not wrong
    assert count > 400


@pytest.mark.compiler
def test_every_module_as_code_trains_as_interpreted():
    cases, wrong = [], {}
    for name, made in modules():
        if made.layers[0] not in REFUSED:
            rule = runs.rule_for(made.module, lr=1e-6)
            cases += emitted_programs.cases_of(name, made, rule, seed=0)
    for first in range(0, len(cases), TOGETHER):
        for outcome in emitted_programs.outcomes(cases[first : first + TOGETHER]):
            difference = None if outcome.declined else outcome.difference()
            wrong |= {outcome.name: difference} if difference else {}
    assert not wrong


# -- optimizers ------------------------------------------------------------------------------------

UNSUPPORTED = ("Unsupported optimizer", "Only non-amsgrad", "Muon only supports 2D")
# Acts on the first step too, as in PopTorch.
OF_POPTORCH = {"SGD, dampening"}


def model_of(optimizer):
    torch.manual_seed(0)
    module = Scorer()
    return module, optimizer.kind(module.parameters(), **copy.deepcopy(optimizer.arguments))


def trained(optimizer):
    """The losses of five steps and the weights after them; None where it is refused by name."""
    try:
        module, made = model_of(optimizer)
        model = poptorch.trainingModel(module, options(), made)
        losses = [model(*rows(4, seed=step))[0].clone() for step in range(5)]
    except (AssertionError, ValueError) as error:
        if str(error).startswith(UNSUPPORTED):
            return None
        raise
    model.copyWeightsToHost()
    return losses + [each.detach().clone() for each in module.parameters()]


def trained_eagerly(optimizer):
    module, made = model_of(optimizer)
    losses = []
    for step in range(5):
        made.zero_grad()
        losses.append(module(*rows(4, seed=step))[0])
        losses[-1].backward()
        made.step()
    return [each.detach() for each in (*losses, *module.parameters())]


def test_every_optimizer_trains_with_the_bits_of_plain_pytorch(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    wrong, names = set(), set()
    for optimizer in optimizers():
        actual = trained(optimizer)
        if actual is not None:
            names.add(optimizer.kind.__name__)
            same = all(map(torch.equal, actual, trained_eagerly(optimizer)))
            wrong |= set() if same else {optimizer.name}
    assert wrong == OF_POPTORCH
    assert len(names) == 11


@pytest.mark.compiler
def test_every_optimizer_as_code_trains_as_interpreted(monkeypatch):
    monkeypatch.setenv("ABELE_LOWERING", "emitted")
    for optimizer in optimizers():
        monkeypatch.setenv("ABELE_TARGET", "reference")
        expected = trained(optimizer)
        monkeypatch.setenv("ABELE_TARGET", "cpu")
        actual = trained(optimizer) if expected is not None else None
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
