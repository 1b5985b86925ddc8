"""What goes wrong between instances: ``instances_at_fault.py FOLDER FAULT``.

``talk`` makes one mistake after the other in the same two instances, and keeps what each instance
was told in FOLDER; ``die RANK`` has an instance kill itself; ``late RANK`` has it start late.
"""

import gc
import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import torch

import popdist
import popdist.poptorch
import poptorch
from helpers import training_cases
from helpers.wrapping import rows, scorer, weights
from poptorch import resuming

TOLD: dict[str, str] = {}
LATE_S = 5.0


def options(**training):
    made = popdist.poptorch.Options().showCompilationProgressBar(False).randomSeed(3)
    for name, value in training.items():
        getattr(made.Training, name)(value)
    return made


def trainer(model, made=None, lr=0.1):
    optimizer = poptorch.optim.SGD(model.parameters(), lr=lr)
    return poptorch.trainingModel(model, made or options(), optimizer), optimizer


def told(name, function):
    """Remembers what a function raises, or that it did not."""
    try:
        function()
    except (popdist.Error, poptorch.Error) as error:
        TOLD[name] = f"{type(error).__name__}: {error}"
    else:
        TOLD[name] = "nothing"


def batch(step=0):
    return rows(4, 10 * step + popdist.getInstanceIndex())


def other_options(index):
    wrapped, _ = trainer(scorer(), options(gradientAccumulation=1 + index))
    x, y = rows(4 * (1 + index))
    told("options", lambda: wrapped(x, y))


def other_program(index):
    model = scorer()
    if index:
        model.fc = torch.nn.Linear(4, 3, bias=False)
    wrapped, _ = trainer(model)
    told("program", lambda: wrapped(*batch()))


def other_batches(index):
    made = options()
    data = torch.utils.data.TensorDataset(*rows(8 + 8 * index))
    loader = poptorch.DataLoader(made, data, 2, auto_distributed_partitioning=False)
    wrapped, _ = trainer(scorer(), made)
    told("batches", lambda: [wrapped(x, y) for x, y in loader])
    gc.collect()  # the loader, which would count for the next wrappers


def other_batches_of_a_loader_without_a_name(index):
    made = options()
    data = torch.utils.data.TensorDataset(*rows(8 + 8 * index))
    wrapped, _ = trainer(scorer(), made)

    def train():
        for x, y in poptorch.DataLoader(made, data, 2, auto_distributed_partitioning=False):
            wrapped(x, y)

    told("nameless batches", train)


class Reading:
    """A loader that divides 16 rows between both instances, and a model that trains with it."""

    def __init__(self, mode="Sync", **arguments):
        self.made = options()
        data = torch.utils.data.TensorDataset(*rows(16))
        fork = {"sharing_strategy": poptorch.SharingStrategy.Fork}
        if mode == "Async":
            arguments |= {"mode": poptorch.DataLoaderMode.Async, "async_options": fork}
        self.loader = poptorch.DataLoader(self.made, data, 2, shuffle=True, **arguments)
        if mode == "accessor":
            self.loader = poptorch.AsynchronousDataAccessor(self.loader, **fork)
        self.wrapped, _ = trainer(scorer(), self.made)

    def train(self, epochs=1, before_step=lambda step: None):
        for _ in range(epochs):
            for step, (x, y) in enumerate(self.loader):
                before_step(step)
                self.wrapped(x, y)

    def end(self):
        self.loader.terminate()
        self.wrapped.destroy()


def other_epochs(index):
    """Instance 0 alone looks at a batch."""
    for name, settings in (
        ("Sync", {}), ("Async", {}), ("accessor", {}), ("workers", {"num_workers": 1}),
    ):  # fmt: skip
        reading = Reading(name if name != "workers" else "Sync", **settings)
        if index == 0:
            next(iter(reading.loader))
        told(f"peeks, {name}", reading.train)
        if index == 1:
            next(iter(reading.loader))
        told(f"peeked both, {name}", reading.train)
        reading.end()
    reading = Reading()
    told("first epochs", lambda: reading.train(2))
    if index == 0:
        list(reading.loader)
    told("reads all", reading.train)
    reading.end()
    reading = Reading()
    peek = lambda step: step == 1 and index == 0 and next(iter(reading.loader))  # noqa: E731
    told("peeks in an epoch", lambda: reading.train(1, peek))
    reading.end()


def same_epochs(index):
    """What an instance does with other data, and before it reads any, is its own."""
    reading = Reading()
    if index == 0:
        iter(reading.loader)  # nothing is read
    own = poptorch.DataLoader(poptorch.Options(), torch.utils.data.TensorDataset(*rows(6)), 2)
    validate = lambda step: index == 0 and step > 1 and list(own)  # noqa: E731
    told("validates alone", lambda: reading.train(2, validate))
    told("begins again", lambda: reading.train(1))
    reading.end()


def other_weights(index):
    model = scorer(seed=index)
    wrapped, _ = trainer(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrapped.compile(*batch())
    TOLD["start"] = " ".join(str(one.message) for one in caught)
    TOLD["started with those of 0"] = str(torch.equal(weights(model), weights(scorer(seed=0))))
    wrapped.destroy()


def other_values(index):
    model = scorer()
    wrapped, optimizer = trainer(model)
    wrapped(*batch())
    if index:
        optimizer.param_groups[0]["lr"] = 0.2
        wrapped.setOptimizer(optimizer)
    told("learning rate", lambda: wrapped(*batch(1)))
    optimizer.param_groups[0]["lr"] = 0.3
    wrapped.setOptimizer(optimizer)
    told("learning rate repaired", lambda: wrapped(*batch(1)))
    wrapped.copyWeightsToDevice()  # the same as they are
    told("weights as they were", lambda: wrapped(*batch(2)))
    if index:
        with torch.no_grad():
            model.fc.bias.add_(1)
        wrapped.copyWeightsToDevice()
    told("weights", lambda: wrapped(*batch(3)))


def stopped_update(index):
    made = options(gradientAccumulation=2)
    made._Popart.set("enableFloatingPointChecks", True)
    model = scorer()
    wrapped, _ = trainer(model, made)
    wrapped(*batch())
    before = weights(model).clone()
    x, y = batch(1)
    if index:
        x[0] = torch.inf
        x[1] = -torch.inf
    told("stopped", lambda: wrapped(x, y))
    TOLD["stopped left the weights"] = str(torch.equal(weights(model), before))
    told("stopped goes on", lambda: wrapped(*batch(2)))
    TOLD["stopped weights"] = str(weights(model).tolist())


def other_restored_values(index):
    wrapped, optimizer = trainer(scorer())
    wrapped(*batch())
    state = resuming.state_of(wrapped)
    rate = next(name for name in state["tensors"] if name.endswith(".lr"))
    state["tensors"][rate] = state["tensors"][rate] + index
    resuming.put_back(wrapped, state, optimizer)
    told("restored", lambda: wrapped(*batch(1)))


def restored_counters(index):
    """What all processes have counted together is not added up again where it is put back."""
    case = training_cases.CASES["half, automatic scaling"]

    def made():
        torch.manual_seed(7)
        model, opts = training_cases.Dense(case.middle()).half(), options()
        case.settings(opts)
        optimizer = case.optimizer(model)
        return poptorch.trainingModel(model, opts, optimizer), optimizer

    undisturbed, _ = made()
    undisturbed(*training_cases.batch(case, 0, index, 1))
    state = resuming.state_of(undisturbed)
    again, optimizer = made()
    resuming.put_back(again, state, optimizer)
    tensors = []
    for wrapped in (again, undisturbed):
        wrapped(*training_cases.batch(case, 1, index, 1))
        tensors.append(resuming.state_of(wrapped)["tensors"])
    TOLD["counted"] = str(max(float(v) for n, v in tensors[0].items() if "saturated" in n) > 0)
    unlike = [n for n, v in tensors[0].items() if not torch.equal(v, tensors[1][n])]
    TOLD["restored counters"] = str(unlike)


def ended_early(index):
    wrapped, _ = trainer(scorer())
    for step in range(2 + (1 - index)):
        told(f"end {step}", lambda step=step: wrapped(*batch(step)))


def talk(folder):
    index = popdist.getInstanceIndex()
    for mistake in (
        other_options, other_program, other_batches, other_batches_of_a_loader_without_a_name,
        other_epochs, same_epochs, other_weights, other_values, stopped_update,
        other_restored_values, restored_counters, ended_early,
    ):  # fmt: skip
        mistake(index)
    Path(folder, f"{index}.json").write_text(json.dumps(TOLD))


def die(which):
    wrapped, _ = trainer(scorer())
    for step in range(1000):
        if step == 3 and popdist.getInstanceIndex() == which:
            os.kill(os.getpid(), signal.SIGKILL)
        wrapped(*batch(step))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2] == "late" and popdist.getInstanceIndex() == int(sys.argv[3]):
        time.sleep(LATE_S)
    popdist.init()
    if sys.argv[2] == "talk":
        talk(sys.argv[1])
    elif sys.argv[2] == "late":
        reading = Reading()
        reading.train(2)
        print(weights(reading.wrapped.model).tolist())
    else:
        die(int(sys.argv[3]))
