# ruff: noqa: E501 (lines of programs)
"""No mistake in a port to plain PyTorch or SambaFlow goes unnoticed: each changes what is printed."""

from pathlib import Path

import pytest

from helpers import port_fixtures
from sambaflow.samba import session

pytestmark = pytest.mark.usefixtures("in_process")
HERE = Path(__file__).parent
TORCH, SAMBA = HERE / "rules_torch", HERE / "rules_samba"

PLAIN = {
    # Steps that are written around the call.
    "gradients are kept": ("training", "            optimizer.zero_grad()\n", ""),
    "no gradients": ("training", "            loss.backward()\n", ""),
    "no update": ("expressions", "        self.optimizer_2.step()\n", ""),
    "two updates": ("training", "            optimizer.step()\n", "            optimizer.step()\n            optimizer.step()\n"),
    "the update before the gradients": ("training", "            loss.backward()\n            optimizer.step()\n", "            optimizer.step()\n            loss.backward()\n"),
    "gradients twice": ("training", "            loss.backward()\n", "            loss.backward(retain_graph=True)\n            loss.backward()\n"),
    "uphill": ("training", "loss.backward()", "(-loss).backward()"),
    "twice the loss": ("training", "loss.backward()", "(2 * loss).backward()"),
    "another batch": ("training", "training_model(x, y)", "training_model(x.flip(0), y)"),
    "another result": ("expressions", "        results[0].backward()\n", "        results[1].sum().backward()\n"),
    "another optimizer": ("expressions", "        self.optimizer_2.step()\n", "        optimizer_2.step()\n"),
    "a copy of the model": ("expressions", "self.training = self.net", "self.training = __import__('copy').deepcopy(self.net)"),
    "a call left out": ("expressions", "optimizer_2.zero_grad()\ntraining(x, y).backward()\noptimizer_2.step()\n", ""),
    # Functions that make several updates.
    "a sum for a mean": ("batches", "(results[1] / parts).backward()", "results[1].backward()"),
    "a mean for a sum": ("batches", "            results[1].backward()", "            (results[1] / parts).backward()"),
    "one iteration": ("batches", "iterations=2, parts=ACCUMULATION)", "parts=2 * ACCUMULATION)"),
    "no accumulation": ("batches", "iterations=2, parts=ACCUMULATION)", "iterations=2 * ACCUMULATION)"),
    "fewer parts": ("batches", "iterations=2, parts=ACCUMULATION)", "iterations=2, parts=2)"),
    "the first replicas": ("batches", "kept[-replicas:]", "kept[:1]"),
    "other rows": ("batches", "for each in column]) for column in zip(*kept, strict=True))", "for each in column[::-1]]) for column in zip(*kept, strict=True))"),
    "smaller batches": ("batches", "4 * 2 * ACCUMULATION", "4 * ACCUMULATION"),
    "one replica": ("batches", "batch_size=8 * 2", "batch_size=8"),
    "another loss of replicas": ("batches", "(scores - y).square().mean()", "(scores - y).square().sum()"),
    # Optimizers.
    "another rate": ("optimizers", "    lr=0.1,\n", "    lr=0.11,\n"),
    "another class": ("optimizers", "torch.optim.AdamW(", "torch.optim.Adam("),
    "no momentum": ("optimizers", "momentum=0.9", "momentum=0.0"),
    "all parameters": ("optimizers", "second.layer.parameters()", "second.parameters()"),
    "no limit": ("optimizers", '    torch.nn.utils.clip_grad_norm_([each for group in momentum.param_groups for each in group["params"]], 0.1)\n', ""),
    "another limit": ("optimizers", 'group["params"]], 0.1)', 'group["params"]], 0.2)'),
    "the limit of all gradients": ("optimizers", '[each for group in momentum.param_groups for each in group["params"]]', "some.parameters()"),
    "the limit too late": ("optimizers", "    torch.nn.utils.clip_grad_norm_(training.parameters(), 0.5)\n    adam.step()\n", "    adam.step()\n    torch.nn.utils.clip_grad_norm_(training.parameters(), 0.5)\n"),
    "another decay": ("optimizers", "third.parameters(), lr=0.01", "third.parameters(), lr=0.01, alpha=0.9"),
    "the default optimizer's rate": ("operators", "torch.optim.SGD(half.parameters(), lr=0.01)", "torch.optim.SGD(half.parameters(), lr=0.02)"),
    # Loaders and options.
    "no shuffling": ("training", "shuffle=True", "shuffle=False"),
    "another size": ("training", "batch_size=8, shuffle", "batch_size=4, shuffle"),
    "a short batch in training": ("training", "shuffle=True, drop_last=True", "shuffle=True"),
    "a short batch in evaluation": ("training", "DataLoader(data, batch_size=8, drop_last=True)", "DataLoader(data, batch_size=8)"),
    "another seed": ("training", "torch.manual_seed(3)", "torch.manual_seed(4)"),
    "no seed": ("training", "    torch.manual_seed(3)\n", ""),
    # Operators.
    "the mean for the sum": ("operators", "loss = loss.sum()", "loss = loss.mean()"),
    "no matrix": ("operators", "x = torch.matmul(x, torch.eye(3))", "x = torch.matmul(x, 2 * torch.eye(3))"),
    "the way for the device": ("operators", "        if False:\n            pass\n", "        if True:\n            x = 2 * x\n"),
    "a layer left out": ("operators", "self.third(self.second(x).unsqueeze(2)).squeeze(2)", "self.second(x)"),
    "no factor": ("operators", "return result, 0.5 * loss", "return result, loss"),
    # Modes and inference.
    "training in the other mode": ("modes", "    training_model.train()\n", ""),
    "inference in the other mode": ("modes", "    inference_model.eval()\n    with", "    with"),
    "inference trains": ("modes", "        scores = inference_model(x)", "        scores = inference_model.train()(x)"),
    "old weights": ("modes", "inference_model = model", "inference_model = __import__('copy').deepcopy(model)"),
    "the mode set too early": ("modes", "    training_model.train()\n", "    training_model.eval()\n"),
}  # fmt: skip

SESSIONS = {
    # Runs.
    "no update": ("logreg", '["fwd", "bckwd", "opt"]', '["fwd", "bckwd"]'),
    "forward alone": ("logreg", '["fwd", "bckwd", "opt"]', '["fwd"]'),
    "another batch": ("logreg", "from_torch_tensor(images,", "from_torch_tensor(images.flip(0),"),
    "other labels": ("logreg", "from_torch_tensor(labels,", "from_torch_tensor(labels.flip(0),"),
    "results in another order": ("logreg", "scores.argmax(1).tolist())", "scores.flip(1).argmax(1).tolist())"),
    "another loss": ("logreg", "loss = self.criterion(scores, labels)", "loss = self.criterion(2 * scores, labels)"),
    "a detached part": ("logreg", "scores = self.model(images)", "scores = self.model(images).detach() + 0 * self.model(images)"),
    "compiled in the other mode": ("cnn", "    model.train()\n    for", "    model.eval()\n    for"),
    "another loss function": ("cnn", "nn.functional.cross_entropy(self.model(pictures), labels)", "nn.functional.cross_entropy(self.model(pictures), labels, label_smoothing=0.1)"),
    "a term left out": ("trainer", " + self.penalty * out.square().mean()", ""),
    "a run twice": ("trainer", "        samba.session.to_cpu(self.training_model)\n", "        samba.session.run(inputs)\n        samba.session.to_cpu(self.training_model)\n"),
    # Optimizers.
    "another rate": ("logreg", "lr=args.lr", "lr=2 * args.lr"),
    "no momentum": ("logreg", "momentum=args.momentum", "momentum=0.0"),
    "another class": ("logreg", "samba.optim.SGD(", "torch.optim.RMSprop("),
    "no limit": ("cnn", ", max_grad_norm=0.5", ""),
    "another limit": ("cnn", "max_grad_norm=0.5", "max_grad_norm=0.6"),
    "other betas": ("cnn", "betas=(0.9, 0.99)", "betas=(0.9, 0.999)"),
    "the default decay": ("cnn", "weight_decay=0, ", ""),
    "decay in the gradients": ("cnn", "samba.optim.AdamW(model.parameters(), lr=0.02, betas=(0.9, 0.99), weight_decay=0", "samba.optim.Adam(model.parameters(), lr=0.02, betas=(0.9, 0.99), weight_decay=0.1"),
    "another epsilon": ("cnn", "betas=(0.9, 0.99)", "betas=(0.9, 0.99), eps=1e-3"),
    "torch's rate": ("trainer", "lr=0.05", "lr=0.01"),
    # Rates.
    "the first rate": ("cnn", 'optimizer.param_groups[0]["lr"]', 'optimizer.param_groups[0]["initial_lr"]'),
    "half the rate": ("trainer", 'self.optimizer.param_groups[0]["lr"]', '0.5 * self.optimizer.param_groups[0]["lr"]'),
    # Loaders.
    "no shuffling": ("logreg", "shuffle=True", "shuffle=False"),
    "another size": ("logreg", "batch_size=8, shuffle", "batch_size=16, shuffle"),
    "shuffled": ("cnn", "drop_last=True, **options", "drop_last=True, shuffle=True, **options"),
    # Weights on the host.
    "weights are not fetched": ("logreg", "        samba.session.to_cpu(training_model)\n", ""),
    "weights are fetched too late": ("cnn", "        samba.session.to_cpu(training_model, optimizer)\n", "        if step % 3:\n            samba.session.to_cpu(training_model, optimizer)\n"),
    "the optimizer's old state": ("cnn", "to_cpu(training_model, optimizer)", "to_cpu(training_model, optimizer if step < 3 else None)"),
    "weights of the step before": ("trainer", "        samba.session.to_cpu(self.training_model)\n        return loss.item(), error.sum().item()", "        return loss.item(), error.sum().item()"),
}  # fmt: skip


def some(mistakes):
    """Names of mistakes, of which each third runs where long tests do not."""
    for number, name in enumerate(mistakes):
        yield pytest.param(name, marks=[pytest.mark.long] if number % 3 else [])


@pytest.fixture(scope="module")
def prints():
    """What each right port prints, once; tests of the rules compare it with the original."""
    return {}


def noticed(folder, mutation, prints, tmp_path):
    """Whether a broken port prints something else than the right one, or fails."""
    name, right, wrong = mutation
    port = folder / f"{name}.out.py"
    text = port.read_text()
    assert text.count(right) == 1, right
    if port not in prints:
        prints[port] = port_fixtures.printed(port)
        session.graph = None
    broken = tmp_path / "broken.py"
    broken.write_text(text.replace(right, wrong))
    return port_fixtures.printed(broken) != prints[port]


@pytest.mark.parametrize("name", [*some(PLAIN)])
def test_a_mistake_in_plain_pytorch_is_seen(name, prints, tmp_path):
    assert noticed(TORCH, PLAIN[name], prints, tmp_path)


@pytest.mark.parametrize("name", [*some(SESSIONS)])
def test_a_mistake_in_runs_of_a_session_is_seen(name, prints, tmp_path):
    assert noticed(SAMBA, SESSIONS[name], prints, tmp_path)
