"""One loop trains and evaluates, as a condition says."""

import poptorch
import torch
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y):
        outputs = self.model(x)
        loss = self.criterion(outputs, y)
        return outputs, loss


inputs, labels = torch.randn(48, 4), torch.randint(0, 3, (48,))
datasets = {"train": TensorDataset(inputs[:32], labels[:32])}
datasets["val"] = TensorDataset(inputs[32:], labels[32:])
loaders = {
    phase: DataLoader(datasets[phase], batch_size=8, shuffle=True, drop_last=phase == "train")
    for phase in ["train", "val"]
}


def train_model(model, criterion, optimizer, scheduler, loaders, epochs):
    for epoch in range(epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss, right = 0.0, 0
            for x, y in loaders[phase]:
                if phase == "train":
                    outputs, loss = training_model(x, y)
                    _, predictions = torch.max(outputs, 1)
                else:
                    with torch.no_grad():
                        outputs = (inference_model if len(x) == loaders[phase].batch_size else model)(x)
                        _, predictions = torch.max(outputs, 1)
                        loss = criterion(outputs, y)
                running_loss += loss.item() * x.size(0)
                right += torch.sum(predictions == y.data)
            if phase == "train":
                scheduler.step()
                training_model.setOptimizer(optimizer)
            print(epoch, phase, running_loss, right.item())
    return model


model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
inference_model = poptorch.inferenceModel(model, options=opts)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
training_model = poptorch.trainingModel(
    ModelWithLoss(model, torch.nn.CrossEntropyLoss()), options=opts, optimizer=optimizer
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
model = train_model(model, torch.nn.CrossEntropyLoss(), optimizer, scheduler, loaders, 3)
