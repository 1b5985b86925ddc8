"""Which indices of a program may lie outside, as far as it is known before the program runs."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import passes
from abele.targets.index_checks import IndexBounds
from helpers.emitted_operators import Case, Compiled, program_of

G = torch.Generator().manual_seed(1)
X, W = torch.randn(6, 5, generator=G), torch.randn(5, 5, generator=G)
LABELS = torch.tensor([0, 4, 2, 1, 1, 3])


INSIDE = {
    "an input": lambda x, w: w[LABELS],
    "an input with gradients": lambda x, w: F.cross_entropy(x @ w, LABELS),
    "argmax": lambda x, w: x[(x @ w).argmax(0)],
    "argmin of all": lambda x, w: x.gather(0, (x @ w[:, :1]).argmin().view(1, 1)),
    "topk": lambda x, w: F.embedding((x @ w).topk(2)[1], w),
    "sort": lambda x, w: x.gather(0, (x @ w).sort(0)[1]),
    "maximum": lambda x, w: w.index_select(0, (x @ w).max(1)[1]),
    "random": lambda x, w: w[torch.randint(1, 5, (7,))],
    "an order": lambda x, w: w[torch.randperm(5)],
    "a label": lambda x, w: F.cross_entropy(x @ w, (x @ w).detach().argmax(1)),
}
OUTSIDE = {
    "a product": lambda x, w: w[((x @ w)[:, 0] * 9).long()],
    "a wider argmax": lambda x, w: w[(w @ x.t()).argmax(1)],
    "more random numbers": lambda x, w: F.embedding(torch.randint(0, 6, (7,)), w),
    "a remainder": lambda x, w: w[((x @ w)[:, 0] * 9).long() % 5],
    "a wrong label": lambda x, w: F.cross_entropy(x @ w, (x @ w).detach()[:, 0].long()),
}


@pytest.mark.parametrize("name", [*INSIDE, *OUTSIDE])
def test_what_is_known_of_indices(name):
    function = INSIDE.get(name) or OUTSIDE[name]
    program = passes.run(program_of(function, (X, W), gradients=True))
    bounds = IndexBounds(program.graph)
    unknown = [node for node in program.graph.graph.nodes if bounds.may_leave(node)]
    assert bool(unknown) == (name in OUTSIDE), unknown


@pytest.mark.compiler
def test_torch_computes_what_may_index_outside():
    """Torch raises there; code of ours would read and write memory of others."""

    def function(x, w):
        rows = ((x @ w)[:, 0] * 9).long()
        return w[rows], w.scatter_add(0, rows[:5, None].expand(5, 5), w)

    compiled = Compiled(
        {"outside": Case(function, (X, W), gradients=True), "inside": Case(INSIDE["topk"], (X, W))}
    )
    assert compiled.calls("outside")["index.Tensor"] == 1
    assert compiled.calls("outside")["scatter_add.default"] == 1
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 5"):
        compiled.run("outside")
    assert "embedding.default" not in compiled.calls("inside")
