"""Functions that training and evaluation share."""

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

    def forward(self, batch):
        loss = loss_of(self.model, batch)
        return poptorch.identity_loss(loss, reduction="none")


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, second):
        super().__init__()
        self.second = second

    def forward(self, x, y):
        loss, accuracy = loss_and_accuracy(self.second, x, y)
        return accuracy, poptorch.identity_loss(loss, reduction="none")


class ModelWithLoss3(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, third):
        super().__init__()
        self.third = third

    def forward(self, batch):
        loss = loss_of_named(self.third, batch)
        return poptorch.identity_loss(loss, reduction="none")


class ModelWithLoss4(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, fourth):
        super().__init__()
        self.fourth = fourth

    def forward(self, x, y):
        loss = loss_with_norm(self.fourth, x, y)
        return poptorch.identity_loss(loss, reduction="none")


class ModelWithLoss5(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, loss):
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch):
        loss = self.loss(batch)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,)))
train_loader = poptorch.DataLoader(opts, data, batch_size=8)
test_loader = DataLoader(data, batch_size=16)
criterion = nn.CrossEntropyLoss()


class Named(torch.utils.data.Dataset):
    def __len__(self):
        return len(data)

    def __getitem__(self, index):
        return {"rows": data[index][0], "classes": data[index][1]}


def loss_of(model, batch):
    x, y = batch
    return criterion(model(x), y)


def loss_and_accuracy(net, x, y):
    out = net(x)
    return criterion(out, y), (out.argmax(1) == y).float().mean()


def loss_of_named(net, batch):
    return criterion(net(batch["rows"]), batch["classes"])


def loss_with_norm(net, x, y):
    return criterion(net(x), y) + 0.01 * net.weight.square().sum()


def evaluate(net, loader):
    net.eval()
    with torch.no_grad():
        return [loss_and_accuracy(net, *each)[1].item() for each in loader]


model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(2):
    model.train()
    for batch in train_loader:
        loss = training_model(batch)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for batch in test_loader:
            total += loss_of(model, batch).item()
    print(epoch, loss.item(), total)

second = nn.Linear(4, 3)
second_optimizer = poptorch.optim.SGD(second.parameters(), lr=0.5)
training_model_2 = poptorch.trainingModel(
    ModelWithLoss2(second), options=opts, optimizer=second_optimizer
)
for x, y in train_loader:
    accuracy, loss = training_model_2(x, y)
print(loss.item(), accuracy.item(), evaluate(second, test_loader))

third = nn.Linear(4, 3)
third_optimizer = poptorch.optim.SGD(third.parameters(), lr=0.5)
training_model_3 = poptorch.trainingModel(
    ModelWithLoss3(third), options=opts, optimizer=third_optimizer
)
for batch in poptorch.DataLoader(opts, Named(), batch_size=8):
    loss = training_model_3(batch)
with torch.no_grad():
    for batch in DataLoader(Named(), batch_size=16):
        print(loss_of_named(third, batch).item())

fourth = nn.Linear(4, 3)
fourth_optimizer = poptorch.optim.SGD(fourth.parameters(), lr=0.5)
training_model_4 = poptorch.trainingModel(
    ModelWithLoss4(fourth), options=opts, optimizer=fourth_optimizer
)
for x, y in train_loader:
    loss = training_model_4(x, y)
with torch.no_grad():
    for x, y in test_loader:
        print(loss_with_norm(fourth, x, y).item())


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 3)
        self.optimizer = poptorch.optim.SGD(self.model.parameters(), lr=0.5)
        self.training_model_5 = poptorch.trainingModel(
            ModelWithLoss5(self.model, self.loss), options=opts, optimizer=self.optimizer
        )

    def loss(self, batch):
        x, y = batch
        return criterion(self.model(x), y)

    def train(self, loader):
        for batch in loader:
            loss = self.training_model_5(batch)
        return loss.item()

    @torch.no_grad()
    def test(self, loader):
        return sum(self.loss(batch).item() for batch in loader)


trainer = Trainer()
print(trainer.train(train_loader), trainer.test(test_loader))
