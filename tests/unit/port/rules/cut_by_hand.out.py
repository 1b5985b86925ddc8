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

    def forward(self, idx):
        loss = criterion(self.model(x[idx]), y[idx])
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
criterion = nn.CrossEntropyLoss()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)

batch_size = 8
for epoch in range(3):
    perm = torch.randperm(len(x))
    for i in range(0, len(x) - batch_size + 1, batch_size):
        idx = perm[i : i + batch_size]
        loss = training_model(idx)
        print(loss.item())
