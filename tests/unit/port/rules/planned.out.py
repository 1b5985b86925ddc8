"""What is planned by how many batches an epoch has, of which a port leaves a shorter one out."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        loss = self.model(x).square().mean()
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
loader = poptorch.DataLoader(opts, TensorDataset(torch.randn(32, 4)), batch_size=int("8"))
steps = 2 * len(loader)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(2):
    total = 0
    for (x,) in loader:
        loss = training_model(x)
        scheduler.step()
        training_model.setOptimizer(optimizer)
        total += loss.item()
    print(total / len(loader), scheduler.get_last_lr())
