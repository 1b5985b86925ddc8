import argparse
import logging
import os
import sys
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
logger = logging.getLogger(__name__)


class SpiralDataset(Dataset):
    def __init__(self, size: int, classes: int = 3, seed: int = 0):
        gen = torch.Generator().manual_seed(seed)
        self.y = torch.arange(size) % classes
        r = torch.rand(size, generator=gen)
        t = r * 4 + self.y * (2 * torch.pi / classes) + torch.randn(size, generator=gen) * 0.2
        self.x = torch.stack([r * t.sin(), r * t.cos()], dim=1)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return {"inputs": self.x[index], "labels": self.y[index]}


class ResidualBlock(nn.Module):
    def __init__(self, width: int, p: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.drop = nn.Dropout(p)

    def forward(self, x):
        return x + self.drop(self.down(F.silu(self.up(self.norm(x)))))


class Classifier(nn.Module):
    def __init__(self, width: int = 64, depth: int = 3, classes: int = 3, p: float = 0.1):
        super().__init__()
        self.stem = nn.Linear(2, width)
        self.blocks = nn.Sequential(*[ResidualBlock(width, p) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, inputs):
        return self.head(self.blocks(self.stem(inputs)))


class Trainer:
    def __init__(
        self,
        model: nn.Module,
        train_data: DataLoader,
        eval_data: DataLoader,
        optimizer: torch.optim.Optimizer,
        scheduler: Optional[torch.optim.lr_scheduler.LRScheduler],
        max_steps: int,
        accumulate: int = 1,
        grad_clip: Optional[float] = None,
        label_smoothing: float = 0.0,
        snapshot_path: Optional[str] = None,
    ):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = model.to(self.device)
        self.train_data = train_data
        self.eval_data = eval_data
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.max_steps = max_steps
        self.accumulate = accumulate
        self.grad_clip = grad_clip
        self.label_smoothing = label_smoothing
        self.snapshot_path = snapshot_path
        self.global_step = 0
        self.history: list[float] = []
        if snapshot_path and os.path.exists(snapshot_path):
            self._load_snapshot()

    def _load_snapshot(self):
        snapshot = torch.load(self.snapshot_path, map_location=self.device)
        self.model.load_state_dict(snapshot["model"])
        self.optimizer.load_state_dict(snapshot["optimizer"])
        self.global_step = snapshot["step"]
        logger.info("Resuming training from snapshot at step %d", self.global_step)

    def _save_snapshot(self):
        snapshot = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.global_step,
        }
        torch.save(snapshot, self.snapshot_path)
        logger.info("Training snapshot saved at %s", self.snapshot_path)

    def _prepare_inputs(self, batch: dict[str, Any]):
        return {k: v.to(self.device) for k, v in batch.items()}

    def compute_loss(self, batch):
        logits = self.model(batch["inputs"])
        return F.cross_entropy(logits, batch["labels"], label_smoothing=self.label_smoothing)

    def _backward(self, loss):
        if self.accumulate > 1:
            loss = loss / self.accumulate
        loss.backward()

    def _optimizer_step(self):
        if self.grad_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()

    def training_step(self, batches):
        self.model.train()
        total = 0.0
        for batch in batches:
            loss = self.compute_loss(self._prepare_inputs(batch))
            self._backward(loss)
            total += loss.detach() / len(batches)
        self._optimizer_step()
        self.global_step += 1
        return total

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        correct, count = 0, 0
        for batch in self.eval_data:
            batch = self._prepare_inputs(batch)
            correct += (self.model(batch["inputs"]).argmax(-1) == batch["labels"]).sum().item()
            count += len(batch["labels"])
        return correct / count

    def train(self):
        while self.global_step < self.max_steps:
            pending = []
            for batch in self.train_data:
                pending.append(batch)
                if len(pending) < self.accumulate:
                    continue
                loss = self.training_step(pending)
                pending = []
                self.history.append(loss.item())
                lr = self.optimizer.param_groups[0]["lr"]
                logger.info("step %d loss %s lr %.3g", self.global_step, self.history[-1], lr)
                if self.global_step >= self.max_steps:
                    break
            logger.info("eval accuracy %.4f", self.evaluate())
        if self.snapshot_path:
            self._save_snapshot()
        return self.history


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--grad_clip", type=float, default=1.0)
    parser.add_argument("--snapshot_path", default=None)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=args.steps + 1, pct_start=0.3
    )
    trainer = Trainer(
        model,
        DataLoader(SpiralDataset(600), batch_size=args.batch_size, shuffle=True, drop_last=True),
        DataLoader(SpiralDataset(150, seed=1), batch_size=50),
        optimizer,
        scheduler,
        max_steps=args.steps,
        accumulate=args.accumulate,
        grad_clip=args.grad_clip,
        label_smoothing=0.05,
        snapshot_path=args.snapshot_path,
    )
    history = trainer.train()
    logger.info("mean of the last five losses %s", sum(history[-5:]) / len(history[-5:]))


if __name__ == "__main__":
    main()
