"""Image classification as a LightningModule, with as much of Lightning as that needs."""

from argparse import ArgumentParser

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

try:
    import lightning as L
except ImportError:

    class L:
        class LightningModule(nn.Module):
            def __init__(self):
                super().__init__()
                self.logged = {}
                self.hparams = {}

            def save_hyperparameters(self, **hparams):
                self.hparams.update(hparams)

            def log(self, name, value, prog_bar=False):
                self.logged[name] = value.detach() if torch.is_tensor(value) else value

            def log_dict(self, values):
                for name, value in values.items():
                    self.log(name, value)

            def on_before_optimizer_step(self, optimizer):
                pass

        class Trainer:
            def __init__(self, max_steps, gradient_clip_val=None, log_every_n_steps=1, **kwargs):
                self.max_steps = max_steps
                self.gradient_clip_val = gradient_clip_val
                self.log_every_n_steps = log_every_n_steps
                self.global_step = 0

            def fit(self, model, train_loader, val_loader):
                configured = model.configure_optimizers()
                self.optimizer = configured["optimizer"]
                self.scheduler = configured["lr_scheduler"]["scheduler"]
                self.model = model
                while self.global_step < self.max_steps:
                    model.train()
                    for batch_idx, batch in enumerate(train_loader):
                        if self.global_step >= self.max_steps:
                            break
                        self.run_training_batch(batch, batch_idx)
                        self.global_step += 1
                        self.scheduler.step()
                        if self.global_step % self.log_every_n_steps == 0:
                            self.report()
                    self.validate(model, val_loader)

            def run_training_batch(self, batch, batch_idx):
                loss = self.model.training_step(batch, batch_idx)
                self.optimizer.zero_grad()
                loss.backward()
                self.model.on_before_optimizer_step(self.optimizer)
                if self.gradient_clip_val is not None:
                    nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_clip_val)
                self.optimizer.step()

            @torch.no_grad()
            def validate(self, model, val_loader):
                model.eval()
                for batch_idx, batch in enumerate(val_loader):
                    model.validation_step(batch, batch_idx)
                self.report()

            def report(self):
                shown = {
                    k: v.item() if torch.is_tensor(v) else v for k, v in self.model.logged.items()
                }
                print(f"step {self.global_step}", " ".join(f"{k}={v}" for k, v in shown.items()))
                self.model.logged.clear()


class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(
            nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        )


class LitClassifier(L.LightningModule):
    def __init__(self, lr=0.05, max_steps=20, num_classes=4):
        super().__init__()
        self.save_hyperparameters(lr=lr, max_steps=max_steps, num_classes=num_classes)
        self.lr = lr
        self.max_steps = max_steps
        self.net = nn.Sequential(
            ConvBlock(3, 16),
            ConvBlock(16, 32, stride=2),
            ConvBlock(32, 32),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, num_classes),
        )

    def forward(self, x):
        return self.net(x)

    def shared_step(self, batch):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        acc = (logits.argmax(dim=1) == y).float().mean()
        return loss, acc

    def training_step(self, batch, batch_idx):
        loss, acc = self.shared_step(batch)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_acc", acc, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, acc = self.shared_step(batch)
        self.log_dict({"val_loss": loss, "val_acc": acc})

    def on_before_optimizer_step(self, optimizer):
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.log("grad_norm", torch.stack(norms).norm())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(
            self.parameters(), lr=self.lr, momentum=0.9, weight_decay=5e-4, nesterov=True
        )
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.max_steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def main():
    parser = ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=32)
    args = parser.parse_args()

    torch.manual_seed(42)
    y = torch.randint(0, 4, (448,))
    x = torch.randn(448, 3, 16, 16) * 0.5 + torch.eye(4)[y][:, 1:, None, None]
    train_set, val_set = random_split(TensorDataset(x, y), [384, 64])

    model = LitClassifier(max_steps=args.steps)
    trainer = L.Trainer(max_steps=args.steps, gradient_clip_val=1.0, log_every_n_steps=1)
    trainer.fit(
        model,
        DataLoader(train_set, batch_size=args.batch_size, shuffle=True),
        DataLoader(val_set, batch_size=args.batch_size),
    )


if __name__ == "__main__":
    main()
