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
        logits = self.model(xb)
        loss = criterion(logits, yb)
        return logits, poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
x, y = torch.randn(48, 6), torch.randint(0, 3, (48,))
loader = poptorch.DataLoader(opts, TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 3))
criterion = nn.CrossEntropyLoss()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)


def train_step(xb, yb):
    model.train()
    logits, loss = training_model(xb, yb)
    return loss.item(), (logits.argmax(1) == yb).sum().item()


@torch.no_grad()
def eval_step(xb, yb):
    model.eval()
    logits = model(xb)
    return criterion(logits, yb).item(), (logits.argmax(1) == yb).sum().item()


val = DataLoader(TensorDataset(x, y), batch_size=9)
for epoch in range(3):
    tl = [train_step(xb, yb) for xb, yb in loader]
    vl = [eval_step(xb, yb) for xb, yb in val]
    print(tl, vl)
