"""A model is called by hand with batches of several sizes, and loaders of one function have others."""

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
        loss = criterion(self.model(x), y)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
loader = poptorch.DataLoader(opts, data, batch_size=8)
val_loader = DataLoader(data, batch_size=12)
test_loader = DataLoader(data, batch_size=5)
model = nn.Linear(4, 3)
inference_model = poptorch.inferenceModel(model, options=opts)
inference_model_2 = poptorch.inferenceModel(model, options=opts)
inference_model_3 = poptorch.inferenceModel(model, options=opts)
inference_model_4 = poptorch.inferenceModel(model, options=opts)
inference_model_5 = poptorch.inferenceModel(model, options=opts)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
criterion = nn.CrossEntropyLoss()
held_out = torch.randn(6, 4)


def classify(net, rows):
    return net(rows).argmax(1).tolist()


for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = training_model(x, y)
    model.eval()
    with torch.no_grad():
        print(epoch, loss.item(), model(held_out).sum().item())
        print([criterion((inference_model if len(x) == val_loader.batch_size else model)(x), y).item() for x, y in val_loader])
        print([criterion((inference_model_2 if len(x) == test_loader.batch_size else model)(x), y).item() for x, y in test_loader])

with torch.no_grad():
    one = inference_model_3(torch.ones(1, 4))
    several = inference_model_4(torch.ones(5, 4))
    print(one.sum().item(), several.sum().item(), inference_model_5(x).sum().item())
    for count in (1, 2, 3):
        print(model(torch.ones(count, 4)).mean().item())
    path = torch.ones(1, 4)
    for _ in range(3):
        path = torch.cat([path, model(path)[:, [0, 1, 2, 0]]])
    print(path.sum().item(), classify(model, path), classify(model, held_out[:2]))
