"""Functions that training and evaluation share."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4), torch.randint(0, 3, (40,)))
train_loader = DataLoader(data, batch_size=8)
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(2):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
    model.eval()
    total = 0.0
    with torch.no_grad():
        for batch in test_loader:
            total += loss_of(model, batch).item()
    print(epoch, loss.item(), total)

second = nn.Linear(4, 3)
second_optimizer = torch.optim.SGD(second.parameters(), lr=0.5)
for x, y in train_loader:
    second_optimizer.zero_grad()
    loss, accuracy = loss_and_accuracy(second, x, y)
    loss.backward()
    second_optimizer.step()
print(loss.item(), accuracy.item(), evaluate(second, test_loader))

third = nn.Linear(4, 3)
third_optimizer = torch.optim.SGD(third.parameters(), lr=0.5)
for batch in DataLoader(Named(), batch_size=8):
    third_optimizer.zero_grad()
    loss = loss_of_named(third, batch)
    loss.backward()
    third_optimizer.step()
with torch.no_grad():
    for batch in DataLoader(Named(), batch_size=16):
        print(loss_of_named(third, batch).item())

fourth = nn.Linear(4, 3)
fourth_optimizer = torch.optim.SGD(fourth.parameters(), lr=0.5)
for x, y in train_loader:
    fourth_optimizer.zero_grad()
    loss = loss_with_norm(fourth, x, y)
    loss.backward()
    fourth_optimizer.step()
with torch.no_grad():
    for x, y in test_loader:
        print(loss_with_norm(fourth, x, y).item())


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)

    def loss(self, batch):
        x, y = batch
        return criterion(self.model(x), y)

    def train(self, loader):
        for batch in loader:
            loss = self.loss(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def test(self, loader):
        return sum(self.loss(batch).item() for batch in loader)


trainer = Trainer()
print(trainer.train(train_loader), trainer.test(test_loader))
