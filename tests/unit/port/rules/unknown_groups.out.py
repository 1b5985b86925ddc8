"""Groups of an optimizer of which the text does not say whether they have all parameters."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        loss = self.model(torch.randn(8, 4)).square().mean()
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
groups = []
for number, layer in enumerate(reversed([each for each in model if isinstance(each, nn.Linear)])):
    groups.append({"params": layer.parameters(), "lr": 0.1 * 0.5**number})
optimizer = poptorch.optim.SGD(groups, lr=0.1, momentum=0.9, max_grad_norm=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
kept = []
for p in model.parameters():
    if p.ndim > 1:
        kept.append(p)
second = torch.optim.SGD(kept, lr=0.1)
for step in range(8):
    loss = training_model()
    print(loss.item())
print(*(each.norm().item() for each in model.parameters()))
