"""The published conversion of CosmicTagger: imports, loss in forward, one program per command."""

from enum import Enum

import pytest
import torch

try:
    import sambaflow.samba.utils as utils
    from sambaflow import samba
    from sambaflow.samba.utils.argparser import parse_app_args
    from sambaflow.samba.utils.common import common_app_driver
    from sambaflow.samba.utils.pef_utils import get_pefmeta
except ImportError:  # as the published program does, which then runs without
    samba = None

import poptorch

PLANES, STEPS = 3, 3


class ComputeMode(Enum):
    CPU = 0
    IPU = 5
    RDU = 6


class Tagger(torch.nn.Module):
    """A tiny network over three planes with the published change: the loss inside forward."""

    def __init__(self, calculator):
        super().__init__()
        self.calculator = calculator
        self.first = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.last = torch.nn.Conv2d(4, 3, 1)

    def forward(self, image, labels_image=None):
        planes = torch.chunk(image, chunks=PLANES, dim=1)
        x = tuple(self.last(torch.relu(self.first(plane))) for plane in planes)
        if labels_image is None:
            return x
        labels_image = torch.chunk(labels_image.long(), chunks=PLANES, dim=1)
        shape = labels_image[0].shape
        labels_image = [each.view([shape[0], shape[-2], shape[-1]]) for each in labels_image]
        loss = self.calculator(labels_image, x)
        return x, loss


class TaggerForIPU(Tagger):
    def forward(self, image, labels_image):
        x, loss = super().forward(image, labels_image)
        return x, poptorch.identity_loss(loss, reduction="mean")


def calculator(labels, logits):
    losses = [
        torch.nn.functional.cross_entropy(scores, truth)
        for scores, truth in zip(logits, labels, strict=True)
    ]
    return sum(losses)


def minibatch(step):
    generator = torch.Generator().manual_seed(step)
    image = torch.rand(2, PLANES, 8, 16, generator=generator)
    return image, torch.randint(3, (2, PLANES, 8, 16), generator=generator)


def samba_go(args, optimizer, model, inputs, name, train):
    """The dispatch of the published branch, with the names that it left undefined."""
    if args.command == "compile":
        return samba.session.compile(
            model,
            inputs,
            optimizer,
            name=name,
            app_dir=utils.get_file_dir(__file__),
            config_dict=vars(args),
            pef_metadata=get_pefmeta(args, model),
        )
    if args.command == "run":
        utils.trace_graph(model, inputs, optimizer, pef=args.pef, mapping=args.mapping)
        return train(model)
    return common_app_driver(
        args=args,
        model=model,
        inputs=inputs,
        name=name,
        optim=optimizer,
        squeeze_bs_dim=False,
        get_output_grads=False,
        app_dir=utils.get_file_dir(__file__),
    )


def train_on(mode, model):
    """The losses of a few steps; only the call differs between machines."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    if mode is ComputeMode.IPU:
        options = poptorch.Options().showCompilationProgressBar(False)
        theirs = poptorch.optim.Adam(model.parameters(), 1e-2)
        model = poptorch.trainingModel(model, options, theirs)
    for step in range(STEPS):
        if mode is ComputeMode.RDU:
            image, label = minibatch(step)
            tensors = [samba.from_torch(image, name="input"), samba.from_torch(label, name="label")]
            *_, loss = samba.session.run(tensors, model.output_tensors)
        elif mode is ComputeMode.IPU:
            _, loss = model(*minibatch(step))
        else:
            optimizer.zero_grad()
            _, loss = model(*minibatch(step))
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return losses


def fresh(kind=Tagger):
    torch.manual_seed(0)
    return kind(calculator)


@pytest.fixture
def on_rdu():
    """Runs one command of the program as its command line would."""

    def run(*line):
        model = fresh()
        samba.from_torch_model_(model)
        image = samba.randn(2, PLANES, 8, 16, name="input", batch_dim=0).bfloat16().float()
        label = samba.randint(3, (2, PLANES, 8, 16), name="label", batch_dim=0)
        optimizer = samba.optim.Adam(model.parameters(), 1e-2)
        train = lambda traced: train_on(ComputeMode.RDU, traced)  # noqa: E731
        return samba_go(
            parse_app_args(list(line)), optimizer, model, (image, label), "tagger", train
        )

    return run


def test_it_computes_the_same_on_every_machine(on_rdu, capsys):
    pef = on_rdu("compile", "--pef-name", "tagger")
    losses = on_rdu("run", "--pef", pef)
    assert losses == train_on(ComputeMode.CPU, fresh())
    assert losses == pytest.approx(train_on(ComputeMode.IPU, fresh(TaggerForIPU)), abs=1e-6)
    assert losses[-1] < losses[0]
    capsys.readouterr()
    on_rdu("test", "--pef", pef)
    assert "Test passed" in capsys.readouterr().out
    assert on_rdu("measure-performance", "--pef", pef, "-n", "2")["samples_per_s"] > 0
