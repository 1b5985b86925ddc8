"""Mixed precision with a scaler, several losses and weights per class."""
import poptorch
import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, focal, regression):
        super().__init__()
        self.model = model
        self.focal = focal
        self.regression = regression

    def forward(self, inputs, targets, goal, alpha):
        logits, value = self.model(inputs)
        loss_class = self.focal(logits, targets)
        loss_value = self.regression(value, goal)
        l2 = sum(p.pow(2).sum() for p in self.model.parameters())
        loss = loss_class + alpha * loss_value + 1e-4 * l2
        return loss_class, loss_value, poptorch.identity_loss(loss, reduction="none")


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
    loader = poptorch.DataLoader(opts, TensorDataset(x, labels, values), batch_size=8, shuffle=True, drop_last=True)
    counts = torch.bincount(labels, minlength=4).float()
    weight = (counts.sum() / counts)
    model = TwoHeads()
    focal = Focal(weight=weight)
    regression = nn.SmoothL1Loss()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, max_grad_norm=0.5)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model, focal, regression), options=opts, optimizer=optimizer
    )
    scaler = GradScaler("cuda", enabled=use_amp)
    alpha = 0.3
    for epoch in range(2):
        sums = {"focal": 0.0, "value": 0.0, "total": 0.0}
        for step, (inputs, targets, goal) in enumerate(loader):
            loss_class, loss_value, loss = training_model(inputs, targets, goal, torch.as_tensor(alpha))
            sums["focal"] += loss_class.item()
            sums["value"] += loss_value.item()
            sums["total"] += loss.detach().item()
        print(epoch, {k: v / len(loader) for k, v in sums.items()}, scaler.get_scale())
        alpha *= 0.5


if __name__ == "__main__":
    main()
