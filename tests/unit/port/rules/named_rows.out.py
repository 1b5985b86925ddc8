"""Batches are dictionaries with text in them, which no program takes."""

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

    def forward(self, batch):
        loss = self.criterion(self.model(batch["image"]), batch["label"])
        return loss


class Pictures(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        x = torch.full((4,), index / 32)
        return {"image": x, "label": torch.tensor(index % 3), "name": f"picture {index}"}


def main():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    loader = poptorch.DataLoader(opts, Pictures(), batch_size=8)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    training_model = poptorch.trainingModel(
        ModelWithLoss(model, criterion), options=opts, optimizer=optimizer
    )
    for epoch in range(2):
        for batch in loader:
            loss = training_model({"image": batch["image"], "label": batch["label"]})
        print(epoch, batch["name"][0], loss.item())


main()
