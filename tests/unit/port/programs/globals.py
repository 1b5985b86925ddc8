"""Everything is at the top of the file, and functions use it from there."""

from math import log10

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, 1, 2)
        self.conv2 = nn.Conv2d(8, upscale_factor**2, 3, 1, 1)
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)

    def forward(self, x):
        return self.pixel_shuffle(self.conv2(torch.relu(self.conv1(x))))


torch.manual_seed(123)
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")

large = torch.rand(48, 1, 12, 12)
pairs = TensorDataset(nn.functional.avg_pool2d(large, 2), large)
training_data_loader = DataLoader(dataset=pairs, num_workers=0, batch_size=8, shuffle=True)
testing_data_loader = DataLoader(dataset=pairs, num_workers=0, batch_size=10, shuffle=False)

model = Net(upscale_factor=2).to(device)
criterion = nn.MSELoss()

optimizer = optim.Adam(model.parameters(), lr=0.01)


def train(epoch):
    epoch_loss = 0
    for iteration, batch in enumerate(training_data_loader, 1):
        input, target = batch[0].to(device), batch[1].to(device)

        optimizer.zero_grad()
        loss = criterion(model(input), target)
        epoch_loss += loss.item()
        loss.backward()
        optimizer.step()

        print(f"epoch {epoch} ({iteration}/{len(training_data_loader)}): {loss.item()}")

    print(f"epoch {epoch}: {epoch_loss / len(training_data_loader)}")


def test():
    avg_psnr = 0
    with torch.no_grad():
        for batch in testing_data_loader:
            input, target = batch[0].to(device), batch[1].to(device)

            prediction = model(input)
            mse = criterion(prediction, target)
            psnr = 10 * log10(1 / mse.item())
            avg_psnr += psnr
    print(f"average {avg_psnr / len(testing_data_loader)} dB")


for epoch in range(1, 5):
    train(epoch)
    test()
