import poptorch
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, inputs, labels):
        outputs = self.model(inputs)
        loss = self.criterion(outputs, labels)
        return poptorch.identity_loss(loss, reduction="none")


def make_loaders():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(100, 6, generator=g)
    y = (x[:, :3].sum(1) > 0).long() + (x[:, 3] > 0.5).long()
    train = TensorDataset(x[:64], y[:64])
    val = TensorDataset(x[64:], y[64:])
    return poptorch.DataLoader(opts, train, batch_size=8, shuffle=True), DataLoader(val, batch_size=8)


def fit(model, train_loader, val_loader, criterion, optimizer, device, epochs=4):
    history = {"train_loss": [], "val_loss": [], "val_acc": []}
    for epoch in range(epochs):
        model.train()
        running_loss = 0.0
        for inputs, labels in train_loader:
            loss = training_model(inputs, labels)
            running_loss += loss.item() * inputs.size(0)
        epoch_loss = running_loss / len(train_loader.dataset)

        model.eval()
        val_loss, correct, total = 0.0, 0, 0
        with torch.no_grad():
            for inputs, labels in val_loader:
                outputs = (inference_model if len(inputs) == val_loader.batch_size else model)(inputs)
                loss = criterion(outputs, labels)
                val_loss += loss.item() * inputs.size(0)
                _, predicted = torch.max(outputs, 1)
                total += labels.size(0)
                correct += (predicted == labels).sum().item()
        val_loss /= total
        acc = correct / total
        history["train_loss"].append(epoch_loss)
        history["val_loss"].append(val_loss)
        history["val_acc"].append(acc)
        print(f"Epoch {epoch + 1}/{epochs} train {epoch_loss:.9f} val {val_loss:.9f} acc {acc:.4f}")
    return history


if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader, val_loader = make_loaders()
    model = nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
    )
    inference_model = poptorch.inferenceModel(model, options=opts)
    criterion = nn.CrossEntropyLoss()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=1e-2)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model, criterion), options=opts, optimizer=optimizer
    )
    history = fit(model, train_loader, val_loader, criterion, optimizer, device)
    print(history)
