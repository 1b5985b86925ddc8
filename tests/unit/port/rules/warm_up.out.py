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

    def forward(self, xb, yb):
        loss = criterion(self.model(xb), yb)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))
loader = poptorch.DataLoader(opts, TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
criterion = nn.CrossEntropyLoss()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

warm_up = torch.optim.lr_scheduler.LinearLR
then = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer, [warm_up(optimizer, 0.1, total_iters=4), then], milestones=[4]
)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(3):
    for xb, yb in loader:
        loss = training_model(xb, yb)
        scheduler.step()
        training_model.setOptimizer(optimizer)
        print(loss.item(), scheduler.get_last_lr())
