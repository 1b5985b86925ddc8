"""Programs keep their mode; modules do not."""

try:
    import poptorch
except ImportError:
    pass

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3))

    def forward(self, x, y=None):
        out = self.layers(x)
        return out if y is None else nn.functional.mse_loss(out, y)


torch.manual_seed(0)
model = Net()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(model, poptorch.Options(), optimizer)
inference_model = poptorch.inferenceModel(model, poptorch.Options())
x, y = torch.randn(8, 4), torch.randn(8, 3)
for epoch in range(3):
    for step in range(3):
        loss = training_model(x, y)
        print(loss.item(), model.layers.training)
    if not epoch:
        model.eval()
    scores = inference_model(x)
    print(scores.sum().item())

if training_model.isCompiled():
    training_model.copyWeightsToHost()
