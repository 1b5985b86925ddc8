"""A training program with everything that has state, interrupted and started again by tests."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import options, rows
from popdist.checkpoint import Checkpointer

EPOCHS, BATCHES = 3, 6


class Model(torch.nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width)
        self.last = torch.nn.Linear(width, 3)

    def forward(self, x, y):
        hidden = F.dropout(torch.relu(self.norm(self.first(x))), 0.2)
        return F.mse_loss(self.last(hidden), y)


class Data(torch.utils.data.Dataset):
    """Rows that depend on their number, and on random numbers if asked."""

    def __init__(self, noise=0.0):
        self.noise = noise
        self.x, self.y = rows(25)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.noise * torch.randn(4), self.y[index]


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        x, y = rows(24)
        return iter([(x[i], y[i]) for i in range(24)])


class Killed(Exception):
    pass


class Program:
    """What a program makes at every start."""

    def __init__(self, folder, data=None, *, seed=3, optimizer=None, every=1, loader=None, **more):
        torch.manual_seed(5)
        settings = {} if seed is None else {"randomSeed": seed}
        opts = options(**{"gradientAccumulation": 2} | settings | more.pop("options", {}))
        loading = {"batch_size": 2, "shuffle": True} | (loader or {})
        self.loader = poptorch.DataLoader(opts, Data() if data is None else data, **loading)
        self.model = more.pop("model", Model)()
        make = optimizer or (lambda p: poptorch.optim.AdamW(p, lr=0.05, loss_scaling=2.0))
        self.optimizer = make(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, 0.1, total_steps=60, cycle_momentum=False
        )
        self.training = poptorch.trainingModel(self.model, opts, self.optimizer)
        self.losses = []
        self.checkpointer = Checkpointer(
            folder,
            model=self.training,
            optimizer=self.optimizer,
            loader=self.loader,
            scheduler=self.scheduler,
            every=every,
            **more,
        )

    def run(self, stop=None, epochs=EPOCHS, *, tell_first=False):
        """Trains; stops in the middle of a step, as a kill would. Returns all weights.

        The rate of a step is told to the device before it, or after the one before.
        """
        for _ in self.checkpointer.epochs(epochs):
            for x, y in self.checkpointer.batches():
                if self.checkpointer.steps == stop:
                    raise Killed
                if tell_first:
                    self.training.setOptimizer(self.optimizer)
                self.losses.append(self.training(x, y))
                self.scheduler.step()
                if not tell_first:
                    self.training.setOptimizer(self.optimizer)
        return self.state()

    def state(self):
        state_dict = {name: value.clone() for name, value in self.model.state_dict().items()}
        ipu_state = self.optimizer.state_dict().get("ipu_state") or {}
        return state_dict | {f"optimizer {name}": value for name, value in ipu_state.items()}

    def close(self):
        self.loader.terminate()
        self.training.destroy()
