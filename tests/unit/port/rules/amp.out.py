"""Mixed precision: autocast around the forward pass, and a scaler around the update."""

import poptorch
import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        out = self.model(x)
        loss = criterion(out, y)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
use_amp = torch.cuda.is_available()
device = torch.device("cuda" if use_amp else "cpu")
loader = poptorch.DataLoader(opts, TensorDataset(torch.randn(160, 4), torch.randn(160, 3)), batch_size=8)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
inference_model = poptorch.inferenceModel(model, options=opts)
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, max_grad_norm=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
criterion = nn.MSELoss()
scaler = GradScaler("cuda", enabled=use_amp)

for x, y in loader:
    # Half where that is enough.
    loss = training_model(x, y)
    print(loss.item())

model.eval()
with torch.no_grad():
    print(inference_model(x).sum().item())
