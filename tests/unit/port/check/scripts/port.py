import argparse

import torch
from points import Net, points

import poptorch


class WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, rows, classes):
        scores = self.model(rows)
        return scores, self.loss(scores, classes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    options = poptorch.Options().showCompilationProgressBar(False)
    loader = poptorch.DataLoader(options, points(), batch_size=16, shuffle=True)
    model = WithLoss(Net())
    model.train()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    trainer = poptorch.trainingModel(model, options, optimizer)
    for _ in range(arguments.epochs):
        for rows, classes in loader:
            _, loss = trainer(rows, classes)
            print(loss.item())


if __name__ == "__main__":
    main()
