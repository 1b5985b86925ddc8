"""A program of functions with a switch of compute modes."""

import dataclasses
import enum
import functools

import torch
import torch.nn.functional as F

try:
    import poptorch
except ImportError:  # the other modes do without
    poptorch = None


@functools.cache
def ipu_options():
    """Options of the programs in mode ipu."""
    return poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        output = self.model(x)
        loss = F.cross_entropy(output, y)
        return loss


class Mode(enum.Enum):
    cpu = "cpu"
    cuda = "cuda"
    ipu = "ipu"


@dataclasses.dataclass
class Settings:
    mode: Mode
    rate: float = 0.1


DEVICES = {Mode.cpu: "cpu", Mode.ipu: "cpu", Mode.cuda: "cuda:0"}


def precise(settings):
    match settings.mode:
        case Mode.cpu | Mode.ipu:
            return True
        case _:
            return settings.mode not in (Mode.cpu, Mode.ipu) and settings.rate > 1.0


def train(model, loader, optimizer, device, training_model=None, compute_mode=None):
    model.train()
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        # What the old modes do.
        if compute_mode == Mode.ipu:
            loss = training_model(x, y)
        else:
            optimizer.zero_grad()
            output = model(x)
            loss = F.cross_entropy(output, y)
            loss.backward()
            optimizer.step()
        print(loss.item())


def evaluate(model, loader, device, inference_model=None, compute_mode=None):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            if compute_mode == Mode.ipu:
                right += (inference_model(x.to(device)).argmax(1) == y.to(device)).sum().item()
            else:
                right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    print("right", right)


def main(settings):
    device = torch.device(DEVICES[settings.mode])
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(48, 4), torch.randint(0, 3, (48,)))
    if settings.mode == Mode.ipu:
        loader = poptorch.DataLoader(ipu_options(), data, batch_size=8, shuffle=True, drop_last=True)
    else:
        loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    if settings.mode == Mode.ipu:
        inference_model = poptorch.inferenceModel(model, options=ipu_options())
    if settings.mode == Mode.cuda and torch.cuda.is_available():
        model = model.cuda()
    if settings.mode == Mode.ipu:
        optimizer = poptorch.optim.SGD(model.parameters(), lr=settings.rate, momentum=0.9)
        training_model = poptorch.trainingModel(
            ModelWithLoss(model), options=ipu_options(), optimizer=optimizer
        )
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(3):
        if settings.mode == Mode.ipu:
            train(
                model,
                loader,
                optimizer,
                device,
                training_model=training_model,
                compute_mode=settings.mode,
            )
        else:
            train(model, loader, optimizer, device, compute_mode=settings.mode)
        scheduler.step()
        if settings.mode == Mode.ipu:
            training_model.setOptimizer(optimizer)
            evaluate(model, loader, device, inference_model=inference_model, compute_mode=settings.mode)
        else:
            evaluate(model, loader, device, compute_mode=settings.mode)
    print(precise(settings))


main(Settings(Mode.cpu))
