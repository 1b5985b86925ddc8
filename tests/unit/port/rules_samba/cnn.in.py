"""A convolutional network with a schedule, a limit of gradients, and evaluation in the loop."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 4 * 4, 3)),
    )


torch.manual_seed(1)
x = torch.randn(48, 1, 8, 8)
data = TensorDataset(x, x.mean((1, 2, 3)).sign().long() + 1)
options = {"batch_size": 8}
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, betas=(0.9, 0.99), weight_decay=0, fused=False)  # ABP2401 modified, ABP431 modified
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
for epoch in range(2):
    model.train()
    for step, (pictures, labels) in enumerate(DataLoader(data, drop_last=False, **options)):  # ABP2201 modified
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pictures), labels)  # ABP2303 modified
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()  # ABP2304 match
        if step % 3 == 0:
            print(step, loss.item(), schedule.get_last_lr())
            model.eval()
            print(model(x).sum().item())  # ABP2502 match
            model.train()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "end.pt")
kept = torch.load("end.pt", weights_only=True)
print(kept["model"]["0.weight"].sum().item(), kept["optimizer"]["state"][0]["exp_avg"].sum().item())
