"""What else is done once per update: clipping, a scheduler, a counter, what is printed."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

training_opts = poptorch.Options()
training_opts.Training.gradientAccumulation(4)
training_opts.outputMode(poptorch.OutputMode.All)


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = criterion(self.model(x), y)
        return loss


torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
loader = poptorch.DataLoader(training_opts, data, batch_size=4)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.05, max_grad_norm=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=training_opts, optimizer=optimizer
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
updates = 0
optimizer.zero_grad()
for i, (x, y) in enumerate(loader):
    losses = training_model(x, y)
    scheduler.step()
    training_model.setOptimizer(optimizer)
    updates += 1
    print(updates, scheduler.get_last_lr())
