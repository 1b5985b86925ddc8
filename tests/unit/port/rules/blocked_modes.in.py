"""A program of functions with a switch of compute modes."""

import dataclasses
import enum

import torch


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


def main(settings):
    device, model = torch.device(DEVICES[settings.mode]), torch.nn.Linear(4, 3)
    if settings.mode == Mode.cuda and torch.cuda.is_available():  # ABP901 blocked
        model = model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4).to(device)).square().mean()
        loss.backward()
        optimizer.step()
    print(precise(settings))


main(Settings(Mode.cpu))
