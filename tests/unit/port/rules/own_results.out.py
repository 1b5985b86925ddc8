"""Models return an object of a class of their own."""

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

    def forward(self, x, y):
        outputs = self.model(x, y)
        loss = outputs.loss
        return poptorch.identity_loss(loss, reduction="none")


class Output:
    def __init__(self, loss, scores):
        self.loss, self.scores = loss, scores


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x, y):
        scores = self.body(x)
        return Output(nn.functional.cross_entropy(scores, y), scores)


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
loader, test_loader = poptorch.DataLoader(opts, data, batch_size=8), DataLoader(data, batch_size=8)
model = Tagger()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(2):
    for x, y in loader:
        loss = training_model(x, y)
    print(epoch, loss.item())
    with torch.no_grad():
        print([model(x, y).scores.sum().item() for x, y in test_loader])
