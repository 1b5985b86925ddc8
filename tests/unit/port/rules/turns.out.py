"""Loops whose turns are written out: a loader, and whether it trains, in each."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y):
        scores = self.model(x)
        loss = self.criterion(scores, y)
        return loss


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y):
        scores = self.model(x)
        loss = self.criterion(scores, y)
        return scores, loss


class ModelWithLoss3(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y):
        loss = self.criterion(self.model(x), y)
        return loss


class Table(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.full((4,), (index % 7) / 7), index % 3


def run_epoch(model, loader, criterion, optimizer, phase, training_model, inference_model):
    is_train = phase == "train"
    model.train(is_train)
    total = 0.0
    with torch.set_grad_enabled(is_train):
        for x, y in loader:
            if is_train:
                loss = training_model(x, y)
            else:
                scores = (inference_model if len(x) == loader.batch_size else model)(x)
                loss = criterion(scores, y)
            total += loss.item() * x.size(0)
    return total


def fit(model, loaders, criterion, inference_model):
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model, criterion), options=opts, optimizer=optimizer
    )
    for epoch in range(2):
        for phase, loader in loaders.items():
            print(epoch, phase, run_epoch(
                model,
                loader,
                criterion,
                optimizer,
                phase,
                training_model=training_model,
                inference_model=inference_model,
            ))


def fit_in_turns(model, train_loader, val_loader, criterion, inference_model_2):
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training_model_2 = poptorch.trainingModel(
        ModelWithLoss2(model, criterion), options=opts, optimizer=optimizer
    )
    for epoch in range(2):
        for phase, loader in (("train", train_loader), ("val", val_loader)):
            model.train(phase == "train")
            right = 0
            for x, y in loader:
                if phase == "train":
                    scores, loss = training_model_2(x, y)
                else:
                    with torch.no_grad():
                        scores = (inference_model_2 if len(x) == loader.batch_size else model)(x)
                        loss = criterion(scores, y)
                right += (scores.argmax(1) == y).sum().item()
            print(epoch, phase, loss.item(), right)


def fit_as_told(model, training, rest, criterion, inference_model_3):
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training_model_3 = poptorch.trainingModel(
        ModelWithLoss3(model, criterion), options=opts, optimizer=optimizer
    )
    for is_training, loader in zip([True, False], [training, rest]):
        train = is_training
        for x, y in loader:
            if train:
                loss = training_model_3(x, y)
            else:
                with torch.no_grad():
                    loss = criterion((inference_model_3 if len(x) == loader.batch_size else model)(x), y)
        print(is_training, loss.item())


def main():
    torch.manual_seed(0)
    criterion = nn.CrossEntropyLoss()
    loaders = {
        "train": poptorch.DataLoader(opts, Table(32), batch_size=8),
        "val": DataLoader(Table(20), batch_size=8),
    }
    first, second, third = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)
    inference_model = poptorch.inferenceModel(first, options=opts)
    inference_model_2 = poptorch.inferenceModel(second, options=opts)
    inference_model_3 = poptorch.inferenceModel(third, options=opts)
    inference_model_4 = poptorch.inferenceModel(first, options=opts)
    fit(first, loaders, criterion, inference_model=inference_model)
    train_loader = poptorch.DataLoader(opts, Table(36), batch_size=8, drop_last=True)
    val_loader = DataLoader(Table(21), batch_size=4)
    fit_in_turns(second, train_loader, val_loader, criterion, inference_model_2=inference_model_2)
    fit_as_told(
        third,
        poptorch.DataLoader(opts, Table(16), batch_size=8),
        val_loader,
        criterion,
        inference_model_3=inference_model_3,
    )
    for name, loader in [("val", val_loader), ("rest", DataLoader(Table(9), batch_size=2))]:
        with torch.no_grad():
            right = sum(((inference_model_4 if len(x) == 4 and not first.training else first)(x).argmax(1) == y).sum().item() for x, y in loader)
        print(name, right)


main()
