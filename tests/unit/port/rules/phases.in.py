"""One loop trains and evaluates, as a condition says."""

import torch
from torch.utils.data import DataLoader, TensorDataset

inputs, labels = torch.randn(48, 4), torch.randint(0, 3, (48,))
datasets = {"train": TensorDataset(inputs[:32], labels[:32])}
datasets["val"] = TensorDataset(inputs[32:], labels[32:])
loaders = {
    phase: DataLoader(datasets[phase], batch_size=8, shuffle=True)  # ABP201 modified
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
                # gradients of the batch before
                optimizer.zero_grad()  # ABP302 modified
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(x)  # ABP303 modified, ABP502 modified
                    _, predictions = torch.max(outputs, 1)
                    loss = criterion(outputs, y)  # ABP303 modified
                    if phase == "train":
                        loss.backward()  # ABP302 modified
                        optimizer.step()  # ABP302 modified
                running_loss += loss.item() * x.size(0)
                right += torch.sum(predictions == y.data)
            if phase == "train":
                scheduler.step()  # ABP411 modified
            print(epoch, phase, running_loss, right.item())
    return model


model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
model = train_model(model, torch.nn.CrossEntropyLoss(), optimizer, scheduler, loaders, 3)
