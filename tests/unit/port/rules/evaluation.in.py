"""One file without functions: its model is trained and evaluated, and a scheduler steps."""

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x)


train_set = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
test_set = TensorDataset(torch.randn(20, 4), torch.randn(20, 3))
train_loader = DataLoader(train_set, batch_size=8)
test_loader = DataLoader(test_set, batch_size=8)
model = Net()  # ABP501 modified
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

for epoch in range(2):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        out = model(x)
        fit = F.mse_loss(out, y)
        size = out.abs().mean()
        loss = fit + 0.1 * size
        loss.backward()
        optimizer.step()
        print(fit.item(), out[0, 0].item())
    scheduler.step()  # ABP411 modified
    model.eval()
    error = 0.0
    with torch.no_grad():
        for x, y in test_loader:
            error += F.mse_loss(model(x), y, reduction="sum").item()  # ABP502 modified
    print(error / len(test_set))
