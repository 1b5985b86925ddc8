"""A branch chooses one of two models, which are updated by hand, and weights that were saved."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = criterion(self.model(x), y)
        return loss


torch.manual_seed(0)
wide = True
if wide:
    model = nn.Linear(4, 3)
else:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3))
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, max_grad_norm=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
criterion = nn.MSELoss()


def train(x, y):
    loss = training_model(x, y)
    return loss.item()


def load(state):
    model.load_state_dict(state)
    if training_model.isCompiled():
        training_model.copyWeightsToDevice()


first = {name: value.clone() for name, value in model.state_dict().items()}
x, y = torch.randn(8, 4), torch.randn(8, 3)
print([train(x, y) for _ in range(4)])
load(first)
print([train(x, y) for _ in range(4)])
