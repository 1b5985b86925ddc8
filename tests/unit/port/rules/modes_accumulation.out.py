"""A switch of compute modes, and gradients of two batches for an update."""

import enum

import torch

try:
    import poptorch
except ImportError:  # the other modes do without
    poptorch = None

if poptorch is not None:
    training_opts = poptorch.Options()
    training_opts.Training.gradientAccumulation(2)
    training_opts.outputMode(poptorch.OutputMode.All)


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        return loss


class Mode(enum.Enum):
    CPU = 0
    GPU = 1
    IPU = 2


MODE = Mode.CPU


def main():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 3))
    if MODE == Mode.IPU:
        loader = poptorch.DataLoader(training_opts, data, batch_size=8)
    else:
        loader = torch.utils.data.DataLoader(data, batch_size=8)
    model = torch.nn.Linear(4, 3)
    if MODE == Mode.GPU:
        model.cuda()
    if MODE == Mode.IPU:
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
        training_model = poptorch.trainingModel(
            ModelWithLoss(model), options=training_opts, optimizer=optimizer
        )
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index, (x, y) in enumerate(loader):
        if MODE == Mode.IPU:
            losses = training_model(x, y)
            for loss in losses:
                loss = loss / 2
                print(loss.item())
        else:
            loss = torch.nn.functional.mse_loss(model(x), y) / 2
            loss.backward()
            if (index + 1) % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
            print(loss.item())


main()
