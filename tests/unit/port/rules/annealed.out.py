"""VAE with KL annealing, several weighted losses."""

import argparse

import poptorch
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, data, beta):
        recon, mu, logvar = self.model(data)
        loss, bce, kld = loss_function(recon, data, mu, logvar, beta)
        return bce, kld, poptorch.identity_loss(loss, reduction="none")


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(20, 16)
        self.mu = nn.Linear(16, 3)
        self.logvar = nn.Linear(16, 3)
        self.dec = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 20))

    def forward(self, x):
        h = F.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        std = torch.exp(0.5 * logvar)
        z = mu + std * 0.1
        return torch.sigmoid(self.dec(z)), mu, logvar


def loss_function(recon, x, mu, logvar, beta):
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + beta * kld, bce, kld


def train(args, model, loader, optimizer, epoch, beta, training_model):
    model.train()
    train_loss = 0
    for batch_idx, data in enumerate(loader):
        bce, kld, loss = training_model(data, torch.as_tensor(beta))
        train_loss += loss.item()
        if batch_idx % args.log_interval == 0:
            print(
                f"{epoch} {batch_idx} {loss.item() / len(data):.7f} {bce.item():.6f} {kld.item():.6f}"
            )
    print(f"====> {epoch} {train_loss / len(loader.dataset):.7f}")


def test(model, loader, epoch, beta, inference_model):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for i, data in enumerate(loader):
            recon, mu, logvar = (inference_model if len(data) == loader.batch_size else model)(data)
            loss, _, _ = loss_function(recon, data, mu, logvar, beta)
            test_loss += loss.item()
    print("test", epoch, test_loss / len(loader.dataset))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--log-interval", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    data = torch.rand(60, 20).round()
    train_loader = poptorch.DataLoader(opts, data[:40], batch_size=8, shuffle=True)
    test_loader = DataLoader(data[40:], batch_size=8)
    model = VAE()
    inference_model = poptorch.inferenceModel(model, options=opts)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=1e-2)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model), options=opts, optimizer=optimizer
    )
    for epoch in range(1, args.epochs + 1):
        beta = min(1.0, epoch / args.epochs)
        train(args, model, train_loader, optimizer, epoch, beta, training_model=training_model)
        test(model, test_loader, epoch, beta, inference_model=inference_model)


if __name__ == "__main__":
    main()
