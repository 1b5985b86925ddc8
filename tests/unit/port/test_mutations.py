# ruff: noqa: E501 (lines of programs)
"""No mistake in a port goes unnoticed: each of these, put into a right one, changes what it prints."""

import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest
import torch

from abele.port import files
from abele.port.engine import port

PROGRAM = Path(__file__).parent / "programs" / "functions.py"
TRAINER = Path(__file__).parent / "programs" / "trainer.py"

MUTATIONS = {
    # Training steps: what the module computes and what it is given.
    "another loss": (PROGRAM, "loss = F.nll_loss(output, target)", "loss = F.l1_loss(output.sum(1), target)"),
    "the sum instead of the mean": (PROGRAM, "F.nll_loss(output, target)\n", 'F.nll_loss(output, target, reduction="sum")\n'),
    "a detached part": (PROGRAM, "output = self.model(data)", "output = self.model(data).detach() + 0 * self.model(data)"),
    "a copy of the model": (PROGRAM, "ModelWithLoss(model)", "ModelWithLoss(__import__('copy').deepcopy(model))"),
    "arguments in another order": (TRAINER, "ModelWithLoss(self.net, self.criterion, self.config)", "ModelWithLoss(self.net, self.criterion, {'penalty': 0.1})"),
    "a term left out": (TRAINER, '+ self.config["penalty"] * logits.pow(2).mean()', ""),
    "results in another order": (TRAINER, "return logits, poptorch", "return 2 * logits.flip(1), poptorch"),
    "a step twice": (PROGRAM, "loss = training_model(data, target)", "training_model(data, target)\n        loss = training_model(data, target)"),
    "a step left out": (PROGRAM, "loss = training_model(data, target)", "loss = training_model(data, target) if batch_idx else torch.tensor(0.0)"),
    "another batch": (PROGRAM, "training_model(data, target)", "training_model(data.flip(0), target)"),
    # Optimizers.
    "another learning rate": (PROGRAM, "lr=0.1,", "lr=0.1001,"),
    "no momentum": (PROGRAM, "momentum=0.9", "momentum=0.0"),
    "no weight decay": (TRAINER, "weight_decay=0.1", "weight_decay=0.0"),
    "another class": (TRAINER, "poptorch.optim.AdamW", "poptorch.optim.Adam"),
    # Schedulers.
    "the training model is not told": (PROGRAM, "        training_model.setOptimizer(optimizer)\n", ""),
    # Loaders.
    "no shuffling": (PROGRAM, '"shuffle": True}\n    test', '"shuffle": False}\n    test'),
    "another batch size": (PROGRAM, "opts, images(80, 1), **train_kwargs", "opts, images(80, 1), batch_size=16"),
    # Evaluation.
    "rows left out": (PROGRAM, "torch.utils.data.DataLoader(images(40, 2), **test_kwargs)", "poptorch.DataLoader(opts, images(40, 2), **test_kwargs)"),
    "the training model evaluates": (TRAINER, "self.inference_model = poptorch.inferenceModel(self.net", "self.inference_model = poptorch.inferenceModel(__import__('copy').deepcopy(self.net)"),
    "dropout in evaluation": (PROGRAM, "    model.eval()\n", "    model.train()\n"),
}  # fmt: skip


def printed(path, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.setattr(sys, "argv", [str(path)])
    output = io.StringIO()
    with torch.random.fork_rng(), contextlib.redirect_stdout(output):
        runpy.run_path(str(path), run_name="__main__")
    return output.getvalue()


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    texts = {}
    for path in (PROGRAM, TRAINER):
        folder = tmp_path_factory.mktemp(path.stem)
        files.write(port(files.read(path)), path, folder)
        texts[path] = (folder / path.name).read_text()
    return texts


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mistake_is_seen(name, ports, tmp_path, monkeypatch):
    program, right, wrong = MUTATIONS[name]
    assert ports[program].count(right) == 1, right
    broken = tmp_path / program.name
    broken.write_text(ports[program].replace(right, wrong))
    assert printed(broken, monkeypatch) != printed(program, monkeypatch)
