import copy

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, xb, yb):
        loss = criterion(self.net(xb), yb)
        return poptorch.identity_loss(loss, reduction="none")


class EarlyStopping:
    def __init__(self, patience=2, min_delta=0.0):
        self.patience = patience
        self.min_delta = min_delta
        self.best = float("inf")
        self.counter = 0
        self.stop = False

    def __call__(self, value):
        if value < self.best - self.min_delta:
            self.best = value
            self.counter = 0
            return True
        self.counter += 1
        if self.counter >= self.patience:
            self.stop = True
        return False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 64)
        self.bn = nn.BatchNorm1d(64)
        self.fc2 = nn.Linear(64, 1)

    def forward(self, x):
        return self.fc2(torch.relu(self.bn(self.fc1(x)))).squeeze(-1)


torch.manual_seed(11)
device = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.randn(120, 10)
Y = X[:, 0] * 2 + torch.randn(120)
train_ds, val_ds, test_ds = random_split(TensorDataset(X, Y), [64, 32, 24])
train_loader = poptorch.DataLoader(opts, train_ds, batch_size=16, shuffle=True)
val_loader = DataLoader(val_ds, batch_size=16)
test_loader = DataLoader(test_ds, batch_size=16)
net = Net()
inference_model = poptorch.inferenceModel(net, options=opts)
optimizer = poptorch.optim.Adam(net.parameters(), lr=0.05)
training_model = poptorch.trainingModel(
    ModelWithLoss(net), options=opts, optimizer=optimizer
)
criterion = nn.MSELoss()
stopper = EarlyStopping(patience=2)
best_state = None
for epoch in range(30):
    net.train()
    for xb, yb in train_loader:
        loss = training_model(xb, yb)
    net.eval()
    val = 0.0
    with torch.no_grad():
        for xb, yb in val_loader:
            val += criterion((inference_model if len(xb) == val_loader.batch_size else net)(xb), yb).item()
    val /= len(val_loader)
    print(epoch, loss.item(), val)
    if stopper(val):
        best_state = copy.deepcopy(net.state_dict())
        torch.save(net.state_dict(), "best.pt")
    if stopper.stop:
        print("stopped at", epoch)
        break
net.load_state_dict(best_state)
if training_model.isCompiled():
    training_model.copyWeightsToDevice()
net.eval()
with torch.no_grad():
    test = sum(
        criterion((inference_model if len(xb) == test_loader.batch_size else net)(xb), yb).item() * len(yb) for xb, yb in test_loader
    )
print("test", test / len(test_ds))
net.load_state_dict(torch.load("best.pt"))
if training_model.isCompiled():
    training_model.copyWeightsToDevice()
with torch.no_grad():
    preds = torch.cat([(inference_model if len(xb) == test_loader.batch_size else net)(xb) for xb, _ in test_loader])
print(preds[:5].tolist())
