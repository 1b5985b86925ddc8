"""A function makes model and optimizer, batch normalisation, a loss that is a function of the file."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv = nn.Conv1d(5, 8, 3)
        self.batchnorm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(8, 3)

    def forward(self, input):
        input = input.reshape(-1, 6, 5)
        output = self.conv(input.transpose(1, 2))
        output = self.batchnorm(output[:, :, -1])
        return self.fc(self.dropout(F.relu(output)))


def smoothed(scores, target, epsilon=0.1):
    log = F.log_softmax(scores, dim=-1)
    return (1 - epsilon) * F.nll_loss(log, target) - epsilon * log.mean()


def loaders(count):
    x = torch.randn(count, 30)
    data = TensorDataset(x, torch.randint(0, 3, (count,)))
    return DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8)


def build():
    model = Net()
    return model, torch.optim.Adam(model.parameters(), lr=0.02)


def main():
    torch.manual_seed(2)
    model, optimizer = build()
    train_loader, test_loader = loaders(68)
    for epoch in range(3):
        model.train()
        running = []
        for x, y in train_loader:
            if len(y) < 8:
                continue
            optimizer.zero_grad()
            loss = smoothed(model(x), y)
            running.append(loss.item())
            loss.backward()
            optimizer.step()
        model.eval()
        right = 0
        for x, y in test_loader:
            with torch.no_grad():
                right += (model(x).argmax(-1) == y).sum().item()
        print(epoch, running, right)


main()
