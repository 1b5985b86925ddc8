import poptorch
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

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
loader = poptorch.DataLoader(
    opts, TensorDataset(torch.randn(48, 6), torch.randint(0, 3, (48,))), batch_size=8
)
backbone = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
head = nn.Linear(16, 3)
model = nn.Sequential(backbone, head)
criterion = nn.CrossEntropyLoss()
optimizer = poptorch.optim.Adam(head.parameters(), lr=1e-2)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(4):
    if epoch == 2:
        training_model.destroy()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        training_model = poptorch.trainingModel(
            ModelWithLoss(model), options=opts, optimizer=optimizer
        )
    for x, y in loader:
        loss = training_model(x, y)
        print(epoch, loss.item())
