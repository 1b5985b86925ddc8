"""What a wrapper says of its program, and several batches of an evaluation."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return nn.functional.dropout(self.layer(x), training=self.training)
torch.manual_seed(3)
model = Net()
inference = model
x = torch.randn(32, 4)
with torch.no_grad():
    print(inference(x).shape)
print(inference.target, inference.cycleCount())
print(inference is model)
if inference(x).sum() > 0:
    print("positive")
