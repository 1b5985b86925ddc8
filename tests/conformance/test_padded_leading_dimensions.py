"""Programs whose matrices have rows apart compute the bits of those that have them in order."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from abele import passes
from abele.targets.cpu.emitted import lowering
from abele.targets.cpu.emitted.calls import products
from helpers.emitted_library import together, trained
from helpers.runs import captured, rule_for

pytestmark = pytest.mark.compiler

ROWS, WIDE = 72, 512


class Wide(nn.Module):
    """Two layers around an activation; the loss also reads single columns, rows and all of it."""

    def __init__(self):
        super().__init__()
        self.widen, self.narrow = nn.Linear(65, WIDE), nn.Linear(WIDE, 48)

    def forward(self, x):
        hidden = F.gelu(self.widen(x.view(8, 9, 65)))
        sums = hidden.sum(-1).mean() + hidden.sum((0, 1)).square().mean()
        half = hidden[..., : WIDE // 2] * hidden[..., WIDE // 2 :]
        return F.mse_loss(self.narrow(hidden) + sums + half.mean(), torch.ones(8, 9, 48))


class Attention(nn.Module):
    """Queries, keys and values are slices of the rows of one matrix."""

    def __init__(self):
        super().__init__()
        self.joint, self.mix = nn.Linear(64, 3 * WIDE), nn.Linear(WIDE, 64)

    def forward(self, x):
        parts = self.joint(x[:, :64]).view(8, 9, 3, 4, WIDE // 4)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value)
        mixed = self.mix(seen.transpose(1, 2).reshape(ROWS, WIDE))
        return F.mse_loss(mixed, torch.ones(ROWS, 64))


# Each: the module, and how many elements a product has at least whose rows a loop takes.
CASES = {
    "loops after products": (Wide, 1 << 60),
    "loops on rows of products": (Wide, 0),
    "attention": (Attention, 1 << 60),
}


@pytest.fixture(scope="module")
def both():
    """Programs of each case, and their plans with rows apart and without, in one library."""
    patch = pytest.MonkeyPatch()
    programs, plans = [], []
    for module_of, least in CASES.values():
        torch.manual_seed(0)
        module = module_of()
        rule = rule_for(module, "adam", weight_decay=0.1, decoupled=True)
        (traced,) = captured(module, [torch.randn(ROWS, 65)], rule=rule).programs
        lowered = passes.run_only(passes.run(traced), lowering.Emitted.passes)
        for limit in ("_LEAST_BY_ROWS", "_LEAST_OF_FEW"):
            patch.setattr(products, limit, least)
        plans.append(lowering.planned_code(lowered))
        with patch.context() as together_in_memory:
            together_in_memory.setattr(lowering, "pad_leading_dimension", lambda *_: None)
            plans.append(lowering.planned_code(lowered))
        programs += [lowered, lowered]
    patch.undo()
    runs = together(programs, plans)
    return {
        name: [(programs[i], plans[i], runs[i]) for i in (2 * n, 2 * n + 1)]
        for n, name in enumerate(CASES)
    }


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_how_far_rows_are_apart(both, name, threads):
    (program, apart, run), (_, follow, plain) = both[name]
    assert f", {WIDE + 16}, " in apart.source.text
    assert f", {WIDE + 16}, " not in follow.source.text
    for count in (1, 2, 3):
        threads(count)
        assert all(map(torch.equal, trained(program, run), trained(program, plain)))
