"""A trainer class: network, optimizer and forward pass are methods, and each phase is timed."""

import contextlib

import poptorch
import torch

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, _net, forward_pass, loss_calculator):
        super().__init__()
        self._net = _net
        self.forward_pass = forward_pass
        self.loss_calculator = loss_calculator

    def forward(self, batch):
        logits, labels = self.forward_pass(batch)
        loss = self.loss_calculator(logits, labels)
        return loss


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
            self._opt = poptorch.optim.RMSprop(self._net.parameters(), 0.01, eps=1e-4)
        else:
            self._opt = poptorch.optim.Adam(self._net.parameters(), 0.01)
        self.training_model = poptorch.trainingModel(
            ModelWithLoss(self._net, self.forward_pass, self.loss_calculator), options=opts, optimizer=self._opt
        )

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
        with self.timing_context("loss"):
            loss = self.training_model({"label": batch["label"], "image": batch["image"]})
        return loss.item()


trainer = Trainer("adam")
for step in range(20):
    print(trainer.train_step({"image": torch.ones(8, 4), "label": torch.zeros(8).long()}))
