"""Parameters that a loop sorts into groups, and a limit of all gradients."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        loss = self.model(x).square().mean()
        return poptorch.identity_loss(loss, reduction="none")


def groups_of(model, decay):
    some, others = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if p.ndim < 2 or name.endswith(".bias"):
            others.append(p)
        else:
            some.append(p)
    return [{"params": some, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]


def run(model, optimizer, training_model):
    for step in range(8):
        x = torch.randn(8, 4)
        loss = training_model(x)
        print(loss.item())
    print(*(each.norm().item() for each in model.parameters()))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 3))
    optimizer = poptorch.optim.AdamW(groups_of(model, 0.1), lr=0.05, max_grad_norm=0.1)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model), options=opts, optimizer=optimizer
    )
    run(model, optimizer, training_model=training_model)


main()
