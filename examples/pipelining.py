"""Spread a network over four devices, and see that its numbers stay the same.

Interpreted (ABELE_TARGET=reference) they are equal to the bit, compiled they agree up to rounding.
Blocks say which layer belongs to which device, and run as a pipeline by default. A pipeline
of 4 stages, and 3 more on the way back, is full with 7 micro-batches per weight update, so the
options must ask for that many. Stages then work at the same time, each on its share of the cores.
"""

import argparse

import torch

import poptorch

ROWS, STEPS, ACCUMULATION = 8, 20, 7


class Net(torch.nn.Module):
    """Four layers and a loss."""

    def __init__(self):
        super().__init__()
        sizes = (16, 64, 64, 32, 1)
        self.layers = torch.nn.ModuleList(map(torch.nn.Linear, sizes[:-1], sizes[1:]))

    def forward(self, x, target):
        """Return the loss of a micro-batch."""
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return torch.nn.functional.mse_loss(self.layers[-1](x), target)


def annotate(model: Net) -> Net:
    for index, layer in enumerate(model.layers):
        poptorch.BeginBlock(layer, f"layer{index}", ipu_id=index)
    return model


def train(model: Net) -> tuple[poptorch.PoplarExecutor, list[float]]:
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    trainer = poptorch.trainingModel(model, options, optimizer)
    x = torch.randn(ROWS * ACCUMULATION, 16, generator=torch.Generator().manual_seed(1))
    target = x.square().mean(1, keepdim=True)
    return trainer, [trainer(x, target).item() for _ in range(STEPS)]


def main() -> None:
    torch.manual_seed(0)
    plain = Net()
    annotated = annotate(Net())
    annotated.load_state_dict(plain.state_dict())
    pipelined, losses = train(annotated)
    print(pipelined.placement)
    print(f"Loss: {losses[0]:.4f} -> {losses[-1]:.4f}")
    apart = max(abs(a / b - 1) for a, b in zip(losses, train(plain)[1], strict=True))
    said = f"losses differ by at most {apart:.0e}" if apart else "the same losses"
    print(f"Without blocks: {said}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
