"""Updates that run on rows of their gradients leave the bits of those that run after all of it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from abele import StepConfig, passes
from abele.targets.cpu.emitted import lowering
from abele.targets.cpu.emitted.calls import products
from abele.targets.cpu.emitted.gemm_epilogues import GemmWithEpilogue
from abele.targets.translation.places import Kind
from helpers.emitted_library import together, trained
from helpers.runs import captured, rule_for

pytestmark = pytest.mark.compiler

ROWS = 40


class Dense(nn.Module):
    """Two linear layers of odd sizes."""

    def __init__(self, *widths):
        super().__init__()
        first, inner, last = widths
        self.first, self.last = nn.Linear(first, inner), nn.Linear(inner, last)

    def forward(self, x):
        return F.mse_loss(self.last(F.relu(self.first(x))), torch.ones(len(x), 45))


class Tied(Dense):
    """The gradient of a weight is a sum of two products."""

    def forward(self, x):
        hidden = F.relu(self.first(x))
        return F.mse_loss(self.first(hidden) + hidden, torch.ones(len(x), 45))


class Sequence(nn.Module):
    """An LSTM of odd sizes, and a layer on its last state."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(33, 37, batch_first=True), nn.Linear(37, 45)

    def forward(self, x):
        states, _ = self.lstm(x.view(ROWS, 3, 33))
        return F.mse_loss(self.head(states[:, -1]), torch.ones(ROWS, 45))


ACCUMULATED = StepConfig(training=True, gradient_accumulation=2)
SMALL = (37, 65, 45)
# Each: the module, columns of its input, arguments of rule_for, the configuration, and how many
# updates, or sums of gradients, run on rows.
CASES = {
    "sgd": (lambda: Dense(*SMALL), 37, ("sgd", {"momentum": 0.0}), None, 2),
    "adam": (lambda: Dense(*SMALL), 37, ("adam", {}), None, 2),
    "adamw": (
        *(lambda: Dense(*SMALL), 37),
        *(("adam", {"weight_decay": 0.1, "decoupled": True}), None, 2),
    ),
    "several blocks": (lambda: Dense(700, 300, 45), 700, ("adam", {}), None, 2),
    "accumulated": (lambda: Dense(*SMALL), 37, ("adam", {}), ACCUMULATED, 2),
    "recurrent": (Sequence, 99, ("adam", {}), None, 3),
    "clipped": (
        *(lambda: Dense(*SMALL), 37),
        *(("adam", {"settings": {"max_grad_norm": 1.0}}), None, 0),
    ),
    "tied": (lambda: Tied(45, 45, 45), 45, ("adam", {}), None, 1),
}


# How many elements a result has at least, with many samples and with few.
LIMITS = ("_LEAST_BY_ROWS", "_LEAST_OF_FEW")


@pytest.fixture(scope="module")
def both():
    """Programs of each case, planned with and without loops on rows, in one library."""
    patch = pytest.MonkeyPatch()
    programs, plans, of_case = [], [], {}
    for name, (make, columns, (kind, settings), config, _) in CASES.items():
        torch.manual_seed(0)
        module = make()
        rule = rule_for(module, kind, **settings)
        traced = captured(module, [torch.randn(ROWS, columns)], config, rule).programs
        for program in traced:
            lowered = passes.run_only(passes.run(program), lowering.Emitted.passes)
            for least in (0, 1 << 60):
                for limit in LIMITS:
                    patch.setattr(products, limit, least)
                programs.append(lowered)
                plans.append(lowering.planned_code(lowered))
                of_case.setdefault((name, least), []).append(len(plans) - 1)
    patch.undo()
    runs = together(programs, plans)
    return lambda name, least: [(programs[i], runs[i]) for i in of_case[name, least]]


@pytest.mark.parametrize("name", CASES)
def test_bits_are_those_of_a_loop_after_the_product(both, name, threads):
    def results(least):
        return [each for pair in both(name, least) for each in trained(*pair)]

    threads(1)
    expected = results(1 << 60)
    for count in (1, 2, 3):
        threads(count)
        torch.testing.assert_close(results(0), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_all_gradients_that_only_the_update_reads_have_no_memory(both, monkeypatch, name):
    for limit in LIMITS:
        monkeypatch.setattr(products, limit, 0)
    updated = 0
    for program, _ in both(name, 0):
        placed = lowering.planned_code(program)
        for unit in placed.units:
            slots = [
                p for each in unit.operations for p in each.writes if p.buffer.kind is Kind.INPUT
            ]
            if isinstance(unit, GemmWithEpilogue) and slots:
                updated += 1
                assert unit.product.writes[0].buffer not in placed.lives
    assert updated == CASES[name][4]


def test_a_large_layer_needs_no_memory_for_its_gradient():
    module = Dense(1024, 512, 45)
    rule = rule_for(module, "adam")
    (program,) = captured(module, [torch.randn(ROWS, 1024)], None, rule).programs
    program = passes.run_only(passes.run(program), lowering.Emitted.passes)
    assert lowering.planned_code(program).size < module.first.weight.nbytes
