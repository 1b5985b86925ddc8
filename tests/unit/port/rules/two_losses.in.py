"""Mixed precision with a scaler, several losses and weights per class."""
import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

use_amp = torch.cuda.is_available()
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv1d(2, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.classes = nn.Linear(8, 4)
        self.value = nn.Linear(8, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.classes(h), self.value(h)


class Focal(nn.Module):
    def __init__(self, gamma=2.0, weight=None):
        super().__init__()
        self.gamma = gamma
        self.register_buffer("weight", weight)

    def forward(self, logits, y):
        log_p = torch.log_softmax(logits, 1)
        p = log_p.exp().gather(1, y[:, None]).squeeze(1)
        picked = log_p.gather(1, y[:, None]).squeeze(1)
        return (-self.weight[y] * (1 - p) ** self.gamma * picked).mean()


def main():
    torch.manual_seed(0)
    x = torch.randn(96, 2, 10)
    labels = torch.randint(0, 4, (96,))
    values = torch.randn(96, 1)
    loader = DataLoader(TensorDataset(x, labels, values), batch_size=8, shuffle=True, pin_memory=use_amp, drop_last=True)
    counts = torch.bincount(labels, minlength=4).float()
    weight = (counts.sum() / counts).to(device)
    model = TwoHeads().to(device)
    focal = Focal(weight=weight).to(device)
    regression = nn.SmoothL1Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    scaler = GradScaler("cuda", enabled=use_amp)
    alpha = 0.3
    for epoch in range(2):
        sums = {"focal": 0.0, "value": 0.0, "total": 0.0}
        for step, (inputs, targets, goal) in enumerate(loader):
            inputs = inputs.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            goal = goal.to(device, non_blocking=True)
            optimizer.zero_grad()
            with autocast(device_type=device.type, enabled=use_amp):
                logits, value = model(inputs)
                loss_class = focal(logits, targets)
                loss_value = regression(value, goal)
                l2 = sum(p.pow(2).sum() for p in model.parameters())
                loss = loss_class + alpha * loss_value + 1e-4 * l2
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
            scaler.step(optimizer)
            scaler.update()
            sums["focal"] += loss_class.item()
            sums["value"] += loss_value.item()
            sums["total"] += loss.detach().item()
        print(epoch, {k: v / len(loader) for k, v in sums.items()}, scaler.get_scale())
        alpha *= 0.5


if __name__ == "__main__":
    main()
