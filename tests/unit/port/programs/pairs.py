"""Two inputs, a criterion of the function's own, and a result that is squeezed."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh())
        self.fc = nn.Sequential(nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
        self.sigmoid = nn.Sigmoid()
        self.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            torch.nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward(self, input1, input2):
        output = torch.cat((self.features(input1), self.features(input2)), 1)
        return self.sigmoid(self.fc(output))


class Pairs(Dataset):
    def __init__(self, count):
        self.images = torch.randn(count, 1, 6, 6)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        other = (index * 7 + 3) % len(self.images)
        target = torch.tensor(float(index % 2), dtype=torch.float)
        return self.images[index], self.images[other], target


def train(model, device, train_loader, optimizer, epoch):
    model.train()

    # the dataset is simple, so this loss does
    criterion = nn.BCELoss()

    for batch_idx, (images_1, images_2, targets) in enumerate(train_loader):
        images_1, images_2, targets = images_1.to(device), images_2.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(images_1, images_2).squeeze()
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        print(epoch, batch_idx, loss.item())


def test(model, device, test_loader):
    model.eval()
    test_loss = 0
    correct = 0
    criterion = nn.BCELoss()
    with torch.no_grad():
        for images_1, images_2, targets in test_loader:
            images_1, images_2 = images_1.to(device), images_2.to(device)
            targets = targets.to(device)
            outputs = model(images_1, images_2).squeeze()
            test_loss += criterion(outputs, targets).sum().item()  # sum up batch loss
            pred = torch.where(outputs > 0.5, 1, 0)
            correct += pred.eq(targets.view_as(pred)).sum().item()
    print(test_loss / len(test_loader.dataset), correct)


def main():
    torch.manual_seed(4)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train_loader = DataLoader(Pairs(64), batch_size=8)
    test_loader = DataLoader(Pairs(30), batch_size=8)
    model = Siamese().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)
    for epoch in range(1, 4):
        train(model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)


if __name__ == "__main__":
    main()
