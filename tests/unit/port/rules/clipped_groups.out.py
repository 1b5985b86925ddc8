"""Groups of parameters in a list that has a name, and a limit of all gradients."""

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


model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
no_decay = ["bias", "1.weight"]
groups = [
    {
        "params": [p for n, p in model.named_parameters() if not any(d in n for d in no_decay)],
        "weight_decay": 0.1,
    },
    {
        "params": [p for n, p in model.named_parameters() if any(d in n for d in no_decay)],
        "weight_decay": 0.0,
    },
]
optimizer = poptorch.optim.AdamW(groups, lr=0.01, max_grad_norm=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for step in range(6):
    x = torch.randn(8, 4)
    loss = training_model(x)
    print(loss.item())
