from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Optional

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

    def forward(self, x, y):
        pred = self.model(x)
        loss = self.criterion(pred, y)
        return poptorch.identity_loss(loss, reduction="none")


@dataclass
class TrainConfig:
    lr: float = 3e-3
    weight_decay: float = 1e-2
    batch_size: int = 8
    epochs: int = 3
    betas: tuple = (0.9, 0.95)
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    log_every: int = 2
    history: list = field(default_factory=list)


class Toy(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 7, generator=g)
        self.y = self.x[:, :2].prod(1, keepdim=True)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class MLP(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(7, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x)


class Trainer:
    def __init__(
        self, model: nn.Module, cfg: TrainConfig, train_ds, val_ds: Optional[Dataset] = None
    ):
        self.cfg = cfg
        self.model = model
        self.inference_model = poptorch.inferenceModel(self.model, options=opts)
        self.train_dl = poptorch.DataLoader(opts, train_ds, batch_size=cfg.batch_size, shuffle=True)
        self.val_dl = DataLoader(val_ds, batch_size=cfg.batch_size) if val_ds is not None else None
        self.criterion = nn.MSELoss()
        self.optimizer = poptorch.optim.AdamW(
            self.model.parameters(), lr=cfg.lr, weight_decay=cfg.weight_decay, betas=cfg.betas
        )
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, T_max=cfg.epochs
        )
        self.training_model = poptorch.trainingModel(
            ModelWithLoss(self.model, self.criterion), options=opts, optimizer=self.optimizer
        )
        self.global_step = 0

    def train_epoch(self) -> float:
        self.model.train()
        total = 0.0
        for step, (x, y) in enumerate(self.train_dl):
            loss = self.training_model(x, y)
            self.global_step += 1
            total += loss.item()
            if self.global_step % self.cfg.log_every == 0:
                print(self.global_step, loss.item(), self.optimizer.param_groups[0]["lr"])
        return total / len(self.train_dl)

    @torch.no_grad()
    def validate(self) -> float:
        self.model.eval()
        losses = []
        for x, y in self.val_dl:
            losses.append(self.criterion((self.inference_model if len(x) == self.val_dl.batch_size else self.model)(x), y).item())
        return sum(losses) / len(losses)

    def fit(self):
        for epoch in range(self.cfg.epochs):
            train_loss = self.train_epoch()
            val_loss = self.validate() if self.val_dl is not None else float("nan")
            self.scheduler.step()
            self.training_model.setOptimizer(self.optimizer)
            self.cfg.history.append((train_loss, val_loss))
            print(f"epoch {epoch} {train_loss:.9f} {val_loss:.9f}")


def main():
    torch.manual_seed(1)
    cfg = TrainConfig()
    trainer = Trainer(MLP(), cfg, Toy(48, 1), Toy(20, 2))
    trainer.fit()
    print(dataclasses.asdict(cfg)["history"])


if __name__ == "__main__":
    main()
