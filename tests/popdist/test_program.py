"""A program as they are written for poprun: load, train, validate, save on one instance."""

import logging
import runpy

import pytest
import torch

import instances
import poptorch
from wrapping import rows

PROGRAM = """
import logging

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import popdist
import popdist.poptorch
import poptorch
from wrapping import rows


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x, y=None):
        scores = self.fc(x)
        if y is None:
            return scores
        return scores, poptorch.identity_loss(F.mse_loss(scores, y), reduction="none")


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


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return lambda: runpy.run_path(str(path), {"FOLDER": tmp_path}, run_name="__main__")


def test_the_program_runs_alike_with_and_without_poprun(program, poprun, tmp_path, caplog, capfd):
    saved = []
    for started in (False, True):
        if started:
            poprun(instances=1, local=2)
        with caplog.at_level(logging.INFO):
            found = program()
        assert found["instance"] == 0
        assert found["epochs"][-1] < found["epochs"][0]
        assert found["seen"] == 32
        saved.append(torch.load(tmp_path / "model-0.ckpt", weights_only=True))
        model = found["model"]
        x, y = rows(32)
        with torch.no_grad():
            plain = torch.nn.functional.mse_loss(model(x), y, reduction="sum").item()
        assert found["error"] == pytest.approx(plain, rel=1e-5)
        assert torch.equal(saved[-1]["fc.weight"], model.fc.weight)
        (tmp_path / "model-0.ckpt").unlink()
    assert torch.equal(saved[0]["fc.weight"], saved[1]["fc.weight"])
    assert sum(record.message.startswith("Loss: ") for record in caplog.records) == 6


def in_one_process(kind):
    """The same training in one process, whose two replicas get what two instances read."""
    data = torch.utils.data.TensorDataset(*rows(32))
    loaders = []
    for index in range(2):
        share = poptorch.Options().randomSeed(42)
        share.Distributed.configureProcessId(index, 2)
        loaders.append(poptorch.DataLoader(share, data, batch_size=2, shuffle=True))
    options = poptorch.Options().replicationFactor(2).showCompilationProgressBar(False)
    options.randomSeed(42)
    model = kind()
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=True
    )
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    for _ in range(3):
        for both in zip(*loaders, strict=True):
            training(*(torch.cat(parts) for parts in zip(*both, strict=True)))
    return model.state_dict()


def test_two_instances_train_as_one_process_does(program, tmp_path):
    path = tmp_path / "program.py"
    text = PROGRAM.replace("FOLDER", f"__import__('pathlib').Path({str(tmp_path)!r})")
    path.write_text(text + "\nprint(epochs[-1] < epochs[0], seen)\n")
    ended = instances.run(path, [], 2)
    assert [one.out.split() for one in ended] == [["True", "16"], ["True", "16"]]
    together = torch.load(tmp_path / "model-0.ckpt", weights_only=True)
    assert not (tmp_path / "model-1.ckpt").exists()
    alone = in_one_process(program()["Model"])
    for name, value in alone.items():
        assert (together[name] - value).abs().max() <= 1e-6 * value.abs().max()


def test_without_init_the_wrapper_refuses_two_instances(program, poprun, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("    popdist.init()\n", ""))
    poprun(index=0, instances=2, local=1)
    with pytest.raises(poptorch.Error, match="Process 0 of 2 does not know where to meet"):
        program()
