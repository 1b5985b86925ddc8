"""The text of a program as they are written for poprun: load, train, validate, save on one."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import rows


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x, y=None):
        scores = self.fc(x)
        if y is None:
            return scores
        return scores, poptorch.identity_loss(F.mse_loss(scores, y), reduction="none")


PROGRAM = """
import logging

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import popdist
import popdist.poptorch
import poptorch
from helpers.popdist_program import Model
from helpers.wrapping import rows


def create_options(replicas):
    if popdist.isPopdistEnvSet():
        opts = popdist.poptorch.Options(ipus_per_replica=1)
        opts.showCompilationProgressBar(popdist.getInstanceIndex() == 0)
    else:
        opts = poptorch.Options().showCompilationProgressBar(False)
        opts.replicationFactor(replicas)
    return opts.randomSeed(42).outputMode(poptorch.OutputMode.All)


def log_in_single_instance(text):
    if not popdist.isPopdistEnvSet() or popdist.getInstanceIndex() == 0:
        logging.info(text)


if popdist.isPopdistEnvSet():
    popdist.init()
    instance = popdist.getInstanceIndex()
else:
    instance = 0

opts = create_options(replicas=2)
data = TensorDataset(*rows(32))
loader = poptorch.DataLoader(opts, data, batch_size=2, shuffle=True,
                             auto_distributed_partitioning=True)
model = Model()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=True)
training = poptorch.trainingModel(model, opts, optimizer=optimizer)
epochs = []
for epoch in range(3):
    losses = [training(x, y)[1].mean() for x, y in loader]
    epochs.append(torch.stack(losses).mean().item())
    log_in_single_instance(f"Loss: {epochs[-1]}")
training.destroy()


def save(state, name):
    torch.save(state, FOLDER / name)


popdist.execute_on_instances({0}, save, model.state_dict(), f"model-{instance}.ckpt")

validation = poptorch.inferenceModel(model.eval(), opts)
error, seen = 0.0, 0
for x, y in poptorch.DataLoader(opts, data, batch_size=2):
    error += F.mse_loss(validation(x), y, reduction="sum").item()
    seen += len(x)
"""


def in_one_process(epochs, instances, local):
    """The same training in one process, whose replicas get what those of the instances read."""
    data = torch.utils.data.TensorDataset(*rows(32))
    loaders = []
    for index in range(instances):
        share = poptorch.Options().randomSeed(42).replicationFactor(local)
        share.Distributed.configureProcessId(index, instances)
        loaders.append(poptorch.DataLoader(share, data, batch_size=2, shuffle=True))
    options = poptorch.Options().replicationFactor(instances * local)
    options.randomSeed(42).showCompilationProgressBar(False)
    model = Model()
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=True
    )
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    for _ in range(epochs):
        for both in zip(*loaders, strict=True):
            training(*(torch.cat(parts) for parts in zip(*both, strict=True)))
    return model.state_dict()
