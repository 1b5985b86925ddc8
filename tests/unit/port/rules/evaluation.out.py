"""One file without functions: its model is trained and evaluated, and a scheduler steps."""

import poptorch
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        out = self.model(x)
        fit = F.mse_loss(out, y)
        size = out.abs().mean()
        loss = fit + 0.1 * size
        return out, fit, poptorch.identity_loss(loss, reduction="none")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.inner(x)


train_set = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
test_set = TensorDataset(torch.randn(20, 4), torch.randn(20, 3))
train_loader = poptorch.DataLoader(opts, train_set, batch_size=8)
test_loader = DataLoader(test_set, batch_size=8)
model = Net()
inference_model = poptorch.inferenceModel(model, options=opts)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)

for epoch in range(2):
    model.train()
    for x, y in train_loader:
        out, fit, loss = training_model(x, y)
        print(fit.item(), out[0, 0].item())
    scheduler.step()
    training_model.setOptimizer(optimizer)
    model.eval()
    error = 0.0
    with torch.no_grad():
        for x, y in test_loader:
            error += F.mse_loss((inference_model if len(x) == test_loader.batch_size else model)(x), y, reduction="sum").item()
    print(error / len(test_set))
