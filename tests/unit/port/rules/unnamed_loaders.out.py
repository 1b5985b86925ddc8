import poptorch
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, xb, yb):
        loss = loss_fn(self.model(xb), yb)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
x = torch.randn(80, 5)
y = torch.randint(0, 3, (80,))
train_set = TensorDataset(x[:48], y[:48])
test_set = TensorDataset(x[48:], y[48:])
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
loss_fn = nn.CrossEntropyLoss()
opt = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=opt
)


def accuracy(dataset):
    model.eval()
    hits = 0
    with torch.no_grad():
        for xb, yb in DataLoader(dataset, batch_size=10):
            hits += (model(xb).argmax(dim=1) == yb).sum().item()
    return hits / len(dataset)


for epoch in range(3):
    model.train()
    for xb, yb in poptorch.DataLoader(opts, train_set, batch_size=12, shuffle=True):
        loss = training_model(xb, yb)
        print(loss.item())
    print(epoch, accuracy(train_set), accuracy(test_set))

model.eval()
total = 0.0
with torch.no_grad():
    for xb, yb in DataLoader(test_set, batch_size=7):
        total += loss_fn(model(xb), yb).item() * len(yb)
print(total / len(test_set))
