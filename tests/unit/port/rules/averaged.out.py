import copy

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


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.clone().detach() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            if v.dtype.is_floating_point:
                self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)
            else:
                self.shadow[k].copy_(v)

    def apply_to(self, model):
        self.backup = copy.deepcopy(model.state_dict())
        model.load_state_dict(self.shadow)
        if training_model.isCompiled():
            training_model.copyWeightsToDevice()

    def restore(self, model):
        model.load_state_dict(self.backup)
        if training_model.isCompiled():
            training_model.copyWeightsToDevice()


torch.manual_seed(5)
x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
loader = poptorch.DataLoader(opts, TensorDataset(x, y), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(x, y), batch_size=16)
model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))
inference_model = poptorch.inferenceModel(model, options=opts)
ema = EMA(model, 0.9)
criterion = nn.CrossEntropyLoss()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)


def evaluate():
    model.eval()
    total = 0.0
    with torch.no_grad():
        for xb, yb in test_loader:
            total += criterion((inference_model if len(xb) == test_loader.batch_size else model)(xb), yb).item()
    return total / len(test_loader)


for epoch in range(3):
    model.train()
    for xb, yb in loader:
        loss = training_model(xb, yb)
        ema.update(model)
        print(loss.item())
    plain = evaluate()
    ema.apply_to(model)
    smooth = evaluate()
    ema.restore(model)
    print(epoch, plain, smooth)
