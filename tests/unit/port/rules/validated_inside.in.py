import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def validate(model, loader, criterion):
    was_training = model.training
    model.eval()
    total, n = 0.0, 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            total += criterion(out, y).item() * len(y)
            n += len(y)
    model.train(was_training)
    return total / n


def main():
    torch.manual_seed(9)
    x, y = torch.randn(90, 5), torch.randint(0, 4, (90,))
    train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=8, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=8)
    model = nn.Sequential(
        nn.Linear(5, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Dropout(0.3), nn.Linear(10, 4)
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    global_step = 0
    best = float("inf")
    for epoch in range(2):
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()  # ABP313 manual
            optimizer.step()
            global_step += 1
            if global_step % 3 == 0:
                val = validate(model, val_loader, criterion)
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
