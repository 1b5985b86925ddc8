import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y):
        loss = self.criterion(self.model(x), y)
        return poptorch.identity_loss(loss, reduction="none")


def validate(model, loader, criterion, inference_model):
    was_training = model.training
    model.eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            out = (inference_model if len(x) == loader.batch_size else model)(x)
            total += criterion(out, y).item() * len(y)
            n += len(y)
    model.train(was_training)
    return total / n


def main():
    torch.manual_seed(9)
    x, y = torch.randn(90, 5), torch.randint(0, 4, (90,))
    train_loader = poptorch.DataLoader(opts, TensorDataset(x[:64], y[:64]), batch_size=8, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=8)
    model = nn.Sequential(
        nn.Linear(5, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Dropout(0.3), nn.Linear(10, 4)
    )
    inference_model = poptorch.inferenceModel(model, options=opts)
    criterion = nn.CrossEntropyLoss()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-2)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model, criterion), options=opts, optimizer=optimizer
    )
    global_step = 0
    best = float("inf")
    for epoch in range(2):
        model.train()
        for x, y in train_loader:
            loss = training_model(x, y)
            global_step += 1
            if global_step % 3 == 0:
                val = validate(model, val_loader, criterion, inference_model=inference_model)
                print(global_step, loss.item(), val)
                if val < best:
                    best = val
                    torch.save(
                        {
                            "step": global_step,
                            "model": model.state_dict(),
                            "opt": optimizer.state_dict(),
                        },
                        "best.pt",
                    )
    print(torch.load("best.pt")["step"], best)


main()
