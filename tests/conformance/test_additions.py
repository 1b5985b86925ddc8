"""Additions of products keep their factor: torch 2.13's compiler would lose it."""

import torch

from helpers.runs import captured, flat, started


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        product = x @ self.weight
        return torch.add(x, product, alpha=0.25), torch.add(product, x, alpha=-3.0)


def test_a_product_that_is_added_keeps_its_factor(target):
    module, x = Scaled(), torch.randn(4, 4)
    session, _ = started(module, [x], target=target)
    output = [value.cpu() for value in session.step([x.to(session.device)])]
    with torch.no_grad():
        torch.testing.assert_close(output, flat(module(x)), rtol=1e-5, atol=1e-5)
    assert len(captured(module, [x]).programs) == 1
