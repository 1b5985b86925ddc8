"""Batches are dictionaries with text in them, and functions and models are given whole ones."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def forward(self, batch):
        loss = self.first.compute(batch)
        return poptorch.identity_loss(loss, reduction="none")


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, second):
        super().__init__()
        self.second = second

    def forward(self, batch):
        loss = with_penalty(self.second, rows=batch)
        return poptorch.identity_loss(loss, reduction="none")


class Pictures(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        x = torch.full((4,), index / 32)
        return {"name": f"picture {index}", "image": x, "label": torch.tensor(index % 3)}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, batch):
        return self.head(torch.tanh(self.body(batch["image"])))

    def compute(self, batch):
        return self.criterion(self(batch), batch["label"])


def with_penalty(model, rows, weight=0.01):
    scores = model(rows)
    return nn.functional.cross_entropy(scores, rows["label"]) + weight * scores.pow(2).mean()


def evaluate(model, loader, inference_model):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for batch in loader:
            scores = (inference_model if len(batch["image"]) == loader.batch_size else model)({"image": batch["image"]})
            total += nn.functional.cross_entropy(scores, batch["label"]).item()
    return total


def main():
    torch.manual_seed(0)
    first, second = Tagger(), Tagger()
    inference_model = poptorch.inferenceModel(first, options=opts)
    loader = poptorch.DataLoader(opts, Pictures(32), batch_size=8)
    test_loader = DataLoader(Pictures(12), batch_size=8)
    optimizer = poptorch.optim.SGD(first.parameters(), lr=0.5)
    training_model = poptorch.trainingModel(
        ModelWithLoss(first), options=opts, optimizer=optimizer
    )
    other = poptorch.optim.SGD(second.parameters(), lr=0.5)
    training_model_2 = poptorch.trainingModel(
        ModelWithLoss2(second), options=opts, optimizer=other
    )
    for epoch in range(2):
        first.train()
        for batch in loader:
            loss = training_model({"image": batch["image"], "label": batch["label"]})
        print(epoch, batch["name"][0], loss.item(), evaluate(
            first, test_loader, inference_model=inference_model
        ))
    for epoch in range(2):
        for batch in loader:
            loss = training_model_2({"image": batch["image"], "label": batch["label"]})
        print(epoch, batch["name"][0], loss.item())


main()
