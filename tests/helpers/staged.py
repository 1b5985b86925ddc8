"""The beginning of programs for tests of stages: a model of layers in a row, and its loss."""


def model_of(*sizes: int) -> str:
    """Lines that make ``model``, of layers with these widths."""
    return f"""
import sys
import torch, poptorch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = {sizes}
        self.layers = torch.nn.ModuleList(map(torch.nn.Linear, sizes[:-1], sizes[1:]))

    def forward(self, x, target):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return torch.nn.functional.mse_loss(self.layers[-1](x), target)

torch.manual_seed(0)
model = Model()
"""
