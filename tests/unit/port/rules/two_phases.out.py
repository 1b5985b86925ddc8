"""A network trained by one optimizer after the other; its body then serves a second head."""

import poptorch
import torch
import torch.nn.functional as F
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, head, body):
        super().__init__()
        self.head = head
        self.body = body

    def forward(self, x, y):
        loss = F.cross_entropy(self.head(self.body(x).relu()), y)
        return loss


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, head, body):
        super().__init__()
        self.head = head
        self.body = body

    def forward(self, x, y):
        loss = F.cross_entropy(self.head(self.body(x).relu()), y)
        return loss


class ModelWithLoss3(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, second, body):
        super().__init__()
        self.second = second
        self.body = body

    def forward(self, x, y):
        loss = F.cross_entropy(self.second(self.body(x).relu()), y)
        return loss


torch.manual_seed(0)
rows, classes = torch.randn(32, 4), torch.randint(0, 3, (32,))
loader = poptorch.DataLoader(
    opts, torch.utils.data.TensorDataset(rows, classes), batch_size=8
)
body, head, second = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

adam = poptorch.optim.Adam([*body.parameters(), *head.parameters()], lr=0.01)
training_model = poptorch.trainingModel(
    ModelWithLoss(head, body), options=opts, optimizer=adam
)
for x, y in loader:
    loss = training_model(x, y)
    print(loss.item())

sgd = poptorch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
training_model.destroy()
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(head, body), options=opts, optimizer=sgd
)
for x, y in loader:
    loss = training_model_2(x, y)
    print(loss.item())

for parameter in body.parameters():
    parameter.requires_grad_(False)
transfer = poptorch.optim.SGD(second.parameters(), lr=0.01)
training_model.destroy()
training_model_2.destroy()
training_model_3 = poptorch.trainingModel(
    ModelWithLoss3(second, body), options=opts, optimizer=transfer
)
for x, y in loader:
    loss = training_model_3(x, y)
    print(loss.item())
