"""A program of functions with a switch of compute modes."""

import dataclasses
import enum

import torch
import torch.nn.functional as F


class Mode(enum.Enum):  # ABP901 blocked
    cpu = "cpu"
    cuda = "cuda"


@dataclasses.dataclass
class Settings:
    mode: Mode
    rate: float = 0.1


DEVICES = {Mode.cpu: "cpu", Mode.cuda: "cuda:0"}  # ABP901 blocked


def precise(settings):
    match settings.mode:
        case Mode.cpu:  # ABP901 blocked
            return True
        case _:
            return settings.mode is not Mode.cpu and settings.rate > 1.0  # ABP901 blocked


def train(model, loader, optimizer, device):
    model.train()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        # What the old modes do.
        optimizer.zero_grad()
        output = model(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        print(loss.item())


def evaluate(model, loader, device):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    print("right", right)


def main(settings):
    device = torch.device(DEVICES[settings.mode])
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randint(0, 3, (48,)))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    if settings.mode == Mode.cuda and torch.cuda.is_available():  # ABP901 blocked
        model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(3):
        train(model, loader, optimizer, device)
        scheduler.step()
        evaluate(model, loader, device)
    print(precise(settings))


main(Settings(Mode.cpu))
