"""Steps that depend on conditions: some never change, others do."""

import torch

amp, every = False, 2
x = torch.randn(8, 3)
scaler = torch.amp.GradScaler("cpu", enabled=amp)

first = torch.nn.Linear(3, 1)
first_optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
for step in range(4):
    loss = first(x).square().mean()
    first_optimizer.zero_grad()
    if amp:  # ABP399 blocked
        scaler.scale(loss).backward()
        scaler.step(first_optimizer)
        scaler.update()
    else:
        loss.backward()
        first_optimizer.step()


class Trainer:
    def __init__(self):
        self.count, self.trains = 0, True
        self.model = torch.nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.other = torch.nn.Linear(3, 1)
        self.other_optimizer = torch.optim.SGD(self.other.parameters(), lr=0.1)

    def fit(self):
        for step in range(4):
            self.count += 1
            loss = self.model(x).square().mean()
            loss.backward()
            if self.count % every == 0:
                self.optimizer.step()  # ABP399 blocked
                self.optimizer.zero_grad()

    def fit_other(self):
        for step in range(4):
            self.other_optimizer.zero_grad()
            loss = self.other(x).square().mean()
            loss.backward()
            if self.trains:  # ABP399 blocked
                self.other_optimizer.step()


Trainer().fit()
Trainer().fit_other()
