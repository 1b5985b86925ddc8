"""Functions are given options; the loss is in the model."""

import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        x = self.layers(x)
        if self.training:
            return x, self.loss(x, labels)
        return x


def train(model, data):
    loader = torch.utils.data.DataLoader(
        data, batch_size=8, shuffle=True, drop_last=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    training_model = model
    for epoch in range(3):
        total = 0.0
        training_model.train()
        for x, y in loader:
            optimizer.zero_grad()
            scores, loss = training_model(x, y)
            loss.backward()
            optimizer.step()
            loss = loss.detach()
            total += loss
        print(epoch, total / len(loader), scores.argmax(1).tolist())
        scheduler.step()


def test(model, data):
    loader = torch.utils.data.DataLoader(data, batch_size=8, drop_last=True)
    inference_model = model.eval()
    for x, y in loader:
        with torch.no_grad():
            print(inference_model(x).argmax(1).eq(y).sum().item())


def main():
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(44, 4), torch.randint(0, 3, (44,)))
    model = Net()
    train(model, data)
    test(model, data=data)


if __name__ == "__main__":
    main()
