"""A trainer class: network, optimizer and forward pass are methods, and each phase is timed."""

import contextlib

import torch


class Trainer:
    def __init__(self, mode):
        self.mode = mode
        self.loss_calculator = torch.nn.CrossEntropyLoss()
        self.init_network()
        self.init_optimizer()

    def init_network(self):
        self._raw_net = torch.nn.Linear(4, 3)
        self._net = self._raw_net

    def init_optimizer(self):
        if self.mode == "rmsprop":
            self._opt = torch.optim.RMSprop(self._net.parameters(), 0.01, eps=1e-4)
        else:
            self._opt = torch.optim.Adam(self._net.parameters(), 0.01)

    def forward_pass(self, batch, net=None):
        labels = batch["label"]
        if net is None:
            logits = self._net(batch["image"])
        else:
            logits = net(batch["image"])
        return logits, labels

    @contextlib.contextmanager
    def timing_context(self, name):
        yield

    def train_step(self, batch):
        self._net.train()
        self._opt.zero_grad()
        with self.timing_context("forward"):
            logits, labels = self.forward_pass(batch)
        with self.timing_context("loss"):
            loss = self.loss_calculator(logits, labels)
        with self.timing_context("backward"):
            loss.backward()
        with self.timing_context("optimizer"):
            self._opt.step()
        return loss.item()


trainer = Trainer("adam")
for step in range(20):
    print(trainer.train_step({"image": torch.ones(8, 4), "label": torch.zeros(8).long()}))
