# ruff: noqa: E501 (lines of programs)
"""No mistake in a port goes unnoticed: each of these, put into a right one, changes what it prints.

Each rule has at least eight, of which the first few always run. What a rule does for several
instances, and files that it has them write, cannot be seen in one process: mistakes of "Several
processes" are those that a program in one instance shows.
"""

from pathlib import Path

import pytest

from abele.port import rules
from abele.port.engine import port
from abele.port.project import Project
from abele.port.source import Source
from helpers import port_fixtures

HERE = Path(__file__).parent
#: How many of a rule's mistakes run where long tests do not.
ALWAYS = 3

DEVICES = {
    "a type is lost": ("devices", ".to(dtype=torch.float16)", ""),
    "another value is moved": ("devices", "torch.randint(0, 5, (8, 4)).flip(1).to(torch.float32)", "torch.randint(0, 5, (8, 4)).to(torch.float32)"),
    "a constant of another type": ("devices", ", dtype=torch.float64)", ")"),
    "another type": ("devices", "dtype=torch.float16", "dtype=torch.bfloat16"),
    "an operand goes with the move": ("devices", "* steps\n", "\n"),
    "another operand": ("devices", "noise - y) * steps\n", "noise - y) * shares\n"),
    "a shape is lost": ("devices", "torch.linspace(0.1, 0.8, 8).unsqueeze(1)", "torch.linspace(0.1, 0.8, 3)"),
    "a factor is lost": ("devices", "0.1 * torch.randn(8, 3)", "torch.randn(8, 3)"),
    "another argument is taken out": ("devices", "torch.linspace(0.1, 0.8, 8)", "torch.linspace(0.1, 8, 8)"),
    "a model of another type": ("devices", "nn.Tanh(), nn.Linear(6, 3))", "nn.Tanh(), nn.Linear(6, 3)).half().float()"),
    "a copy of the weights": ("devices", "model[2].bias.detach()", "model[2].bias.clone().detach().zero_()"),
    "an index is lost": ("devices", "model[2].bias", "model[0].bias"),
    "a checkpoint of another model": ("devices", "torch.save(model.state_dict()", "torch.save(nn.Sequential(nn.Linear(4, 6)).state_dict()"),
}  # fmt: skip

PROCESSES = {
    "each instance prints, or none": ("distributed", "if rank == 0:", "if rank == 1:"),
    "another share": ("distributed", "data, batch_size=8", "torch.utils.data.Subset(data, range(80, 160)), batch_size=8"),
    "it shuffles": ("distributed", "shuffle=False", "shuffle=True"),
    "no shuffling": ("training", "shuffle=True", "shuffle=False"),
    "another number of the instance": ("distributed", "rank = popdist.getInstanceIndex()", "rank = popdist.getNumInstances()"),
    "no seed": ("distributed", "    torch.manual_seed(rank)\n", ""),
    "another seed": ("distributed", "torch.manual_seed(rank)", "torch.manual_seed(42)"),
    "a copy of the model": ("distributed", "ModelWithLoss(model)", "ModelWithLoss(torch.nn.Linear(4, 3))"),
    "smaller batches": ("distributed", "batch_size=8", "batch_size=4"),
    "the batch of all instances": ("distributed", "batch_size=8", "batch_size=16"),
    "one epoch": ("distributed", "in range(2)", "in range(1)"),
    "an update alone": ("distributed", "model.parameters()", "[model.bias]"),
}  # fmt: skip

LOADERS = {
    "no shuffling": ("functions", '"shuffle": True}\n    test', '"shuffle": False}\n    test'),
    "another batch size": ("functions", "opts, images(80, 1), **train_kwargs", "opts, images(80, 1), batch_size=16"),
    "a short batch in training": ("evaluation", "opts, train_set, batch_size=8", "opts, train_set, batch_size=12"),
    "rows left out": ("evaluation", "DataLoader(test_set, batch_size=8)", "poptorch.DataLoader(opts, test_set, batch_size=8)"),
    "the other data": ("evaluation", "opts, train_set", "opts, test_set"),
    "the evaluation's arguments": ("functions", "**train_kwargs)", "**test_kwargs)"),
    "several batches": ("functions", "opts, images(80, 1)", "poptorch.Options().deviceIterations(2), images(80, 1)"),
    "replicas": ("functions", "opts, images(80, 1)", "poptorch.Options().replicationFactor(2), images(80, 1)"),
    "the order of a sampler": ("training", "shuffle=True", "sampler=range(31, -1, -1)"),
    "batches in another order": ("amp", "torch.randn(160, 3)), batch_size=8", "torch.randn(160, 3)), batch_sampler=[range(at, at + 8) for at in range(152, -1, -8)]"),
    "another size of an evaluation": ("evaluation", "test_set, batch_size=8", "test_set, batch_size=4"),
}  # fmt: skip

OPTIMIZERS = {
    "another learning rate": ("functions", "lr=0.1,", "lr=0.1001,"),
    "no momentum": ("functions", "momentum=0.9", "momentum=0.0"),
    "no weight decay": ("trainer", "weight_decay=0.1", "weight_decay=0.0"),
    "another class": ("trainer", "poptorch.optim.AdamW", "poptorch.optim.Adam"),
    "the default rate": ("trainer", 'lr=config["lr"], ', ""),
    "some parameters": ("functions", "optim.SGD(model.parameters()", "optim.SGD(model.fc.parameters()"),
    "parameters of another model": ("evaluation", "optim.SGD(model.parameters()", "optim.SGD(Net().parameters()"),
    "dampening": ("functions", "momentum=0.9", "momentum=0.9, dampening=0.1"),
    "other betas": ("trainer", "weight_decay=0.1", "weight_decay=0.1, betas=(0.9, 0.99)"),
    "another epsilon": ("trainer", "weight_decay=0.1", "weight_decay=0.1, eps=1e-3"),
    "another decay of averages": ("losses", "optim.RMSprop(fourth.parameters()", "optim.RMSprop(fourth.parameters(), alpha=0.9"),
    "the largest averages": ("losses", "poptorch.optim.Adam(second.parameters()", "torch.optim.Adamax(second.parameters()"),
}  # fmt: skip

LIMITS = {
    "another limit": ("amp", "max_grad_norm=0.5", "max_grad_norm=0.51"),
    "no limit under autocast": ("amp", ", max_grad_norm=0.5", ""),
    "the limit of a mean": ("amp", "max_grad_norm=0.5", "max_grad_norm=0.5 / 4"),
    "no limit of groups": ("rules/clipped_groups", ", max_grad_norm=0.1", ""),
    "another limit of groups": ("rules/clipped_groups", "max_grad_norm=0.1", "max_grad_norm=0.11"),
    "no limit of a configuration": ("rules/own_loss", ', max_grad_norm=config["train"]["limit"]', ""),
    "half the limit of a configuration": ("rules/own_loss", 'max_grad_norm=config["train"]["limit"]', 'max_grad_norm=config["train"]["limit"] / 2'),
    "no limit beside a momentum": ("rules/two_losses", ", max_grad_norm=0.5", ""),
}  # fmt: skip

TRAINING = {
    "another loss": ("functions", "loss = F.nll_loss(output, target)", "loss = F.l1_loss(output.sum(1), target)"),
    "a detached part": ("functions", "output = self.model(data)", "output = self.model(data).detach() + 0 * self.model(data)"),
    "a penalty without gradients": ("rules/penalties", "strength * penalty(self.model)", "strength * penalty(self.model).detach()"),
    "a weight of the first epoch": ("rules/two_losses", "torch.as_tensor(alpha)", "torch.tensor(0.3)"),
    "a strength of the first epoch": ("rules/penalties", "torch.as_tensor(strength)", "torch.as_tensor(1e-3)"),
    "weights of classes are lost": ("rules/penalties", "nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))", "nn.CrossEntropyLoss()"),
    "the model of the first fold": ("rules/folds", "ModelWithLoss(network)", "ModelWithLoss(make_model())"),
    "results in another order": ("trainer", "return logits, poptorch", "return 2 * logits.flip(1), poptorch"),
    "the sum instead of the mean": ("functions", "F.nll_loss(output, target)\n", 'F.nll_loss(output, target, reduction="sum")\n'),
    "a copy of the model": ("functions", "ModelWithLoss(model)", "ModelWithLoss(__import__('copy').deepcopy(model))"),
    "arguments in another order": ("trainer", "ModelWithLoss(self.net, self.criterion, self.config)", "ModelWithLoss(self.net, self.criterion, {'penalty': 0.1})"),
    "a term left out": ("trainer", '+ self.config["penalty"] * logits.pow(2).mean()', ""),
    "a step twice": ("functions", "loss = training_model(data, target)", "training_model(data, target)\n        loss = training_model(data, target)"),
    "a step left out": ("functions", "loss = training_model(data, target)", "loss = training_model(data, target) if batch_idx else torch.tensor(0.0)"),
    "another batch": ("functions", "training_model(data, target)", "training_model(data.flip(0), target)"),
    "another share of the loss": ("losses", "(loss / self.parts)", "loss.square()"),
    "another mark": ("losses", 'loss = loss_of(self.model, x, y)\n        return poptorch.identity_loss(loss, reduction="none")', 'loss = loss_of(self.model, x, y)\n        return 2 * poptorch.identity_loss(loss, reduction="none")'),
    "the other loss is differentiated": ("evaluation", 'return out, fit, poptorch.identity_loss(loss, reduction="none")', 'return out, fit, poptorch.identity_loss(fit, reduction="none")'),
    "a criterion made anew": ("training", "ModelWithLoss(model, nn.CrossEntropyLoss())", "ModelWithLoss(model, nn.CrossEntropyLoss(label_smoothing=0.1))"),
    "a state that is not carried": ("carried", "state, loss = training_model(", "_, loss = training_model("),
    "a state from before": ("carried", "scores, state = self.model", "scores, _ = self.model"),
    "the rate of a plan that ends later": ("rules/planned", "steps = 2 * len(loader)", "steps = 3 * len(loader)"),
}  # fmt: skip

AMP = {
    "it casts": ("amp", "out = self.model(x)\n", "out = self.model(x.bfloat16().float())\n"),
    "the scale stays": ("amp", 'identity_loss(loss, reduction="none")', 'identity_loss(4 * loss, reduction="none")'),
    "two updates": ("amp", "    loss = training_model(x, y)\n", "    training_model(x, y)\n    loss = training_model(x, y)\n"),
    "no update": ("amp", "    loss = training_model(x, y)\n", "    loss = criterion(model(x), y)\n"),
    "half the model": ("amp", "nn.Linear(8, 3))\n", "nn.Linear(8, 3)).half().float()\n"),
    "half the results": ("amp", "out = self.model(x)\n", "out = self.model(x).half().float()\n"),
    "half the labels": ("amp", "criterion(out, y)", "criterion(out, y.half().float())"),
    "a statement under autocast left out": ("amp", "out = self.model(x)\n", "out = self.model(x)\n        out = out.clamp(-0.1, 0.1)\n"),
    "the loss is not of the batch": ("amp", "    loss = training_model(x, y)\n", "    loss = training_model(x.half().float(), y)\n"),
    "the limit of scaled gradients": ("amp", "max_grad_norm=0.5", "max_grad_norm=0.5 / 65536"),
    "inference in half": ("amp", "inference_model(x)", "inference_model(x.half().float())"),
    "a program in half": ("amp", "ModelWithLoss(model)", "ModelWithLoss(__import__('copy').deepcopy(model).half().float())"),
}  # fmt: skip

EVALUATION = {
    "rows left out": ("functions", "torch.utils.data.DataLoader(images(40, 2), **test_kwargs)", "poptorch.DataLoader(opts, images(40, 2), **test_kwargs)"),
    "dropout in evaluation": ("functions", "    model.eval()\n", "    model.train()\n"),
    "short batches filled up": ("evaluation", "(inference_model if len(x) == test_loader.batch_size else model)(x)", "inference_model(torch.cat([x, x])[:8])[: len(x)].clone() * (len(x) // 8)"),
    "another batch": ("evaluation", "else model)(x)", "else model)(x.flip(0))"),
    "the mean for the sum": ("evaluation", 'y, reduction="sum"', 'y, reduction="mean"'),
    "short batches left out": ("functions", "output = (inference_model if", "if len(data) < 16:\n                continue\n            output = (inference_model if"),
    "weights without a copy": ("evaluation", "inferenceModel(model,", "inferenceModel(Net(),"),
    "the training model evaluates": ("resumed", "print(criterion((inference_model if len(x) == loader.batch_size else model)(x), y).item())", "print(training_model(x, y).item())"),
    "the batch's averages": ("resumed", "    model.eval()\n", ""),
    "the program of another model": ("rules/reloaded", "criterion(model(x), y)", "criterion(training_model.model.model(x), y)"),
    "the program where an average is evaluated": ("rules/averaged_evaluation", "(net(x) - y)", "(training_model.model.model(x) - y)"),
    "averages that are not frozen": ("rules/evaluation_mode_elsewhere", "    model.apply(freeze)\n", ""),
    "a mode that is not set in a header": ("rules/evaluation_mode_elsewhere", "3 if model.eval() else 2", "3"),
    "another mode by its name": ("rules/evaluation_mode_elsewhere", 'getattr(model, "train")', 'getattr(model, "eval")'),
    "two results exchanged": ("trainer", '(logits.argmax(1) == batch["y"])', '(logits.argmin(1) == batch["y"])'),
    "inference too early": ("resumed", "train()\nevaluate()\nstate", "evaluate()\ntrain()\nstate"),
    "the loss of training": ("globals", "mse = criterion(prediction, target)", "mse = criterion(prediction, target).sqrt()"),
}  # fmt: skip

SCHEDULERS = {
    "the training model is not told": ("functions", "        training_model.setOptimizer(optimizer)\n", ""),
    "told once": ("functions", "        training_model.setOptimizer(optimizer)\n", "        if epoch == 1:\n            training_model.setOptimizer(optimizer)\n"),
    "told at the end": ("functions", "        training_model.setOptimizer(optimizer)\n", "    training_model.setOptimizer(optimizer)\n"),
    "told of another optimizer": ("functions", "setOptimizer(optimizer)", "setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))"),
    "two steps": ("functions", "        scheduler.step()\n", "        scheduler.step()\n        scheduler.step()\n"),
    "no step": ("evaluation", "    scheduler.step()\n", ""),
    "a step of each batch": ("evaluation", "        out, fit, loss = training_model(x, y)\n", "        out, fit, loss = training_model(x, y)\n        scheduler.step()\n        training_model.setOptimizer(optimizer)\n"),
    "not told after the first epoch": ("evaluation", "    training_model.setOptimizer(optimizer)\n", ""),
}  # fmt: skip

RATES = {
    "the training model is not told": ("rates", '0.1**epoch\n    training_model.setOptimizer(optimizer)\n', "0.1**epoch\n"),
    "told before it changes": ("rates", '        group["lr"] = 0.5 * 0.1**epoch\n    training_model.setOptimizer(optimizer)\n', '        training_model.setOptimizer(optimizer)\n        group["lr"] = 0.5 * 0.1**epoch\n'),
    "told once": ("rates", "    slow_down(optimizer, epoch)\n", "    if epoch < 2:\n        slow_down(optimizer, epoch)\n"),
    "no momentum from then on": ("rates", '        group["lr"] =', '        group["momentum"] = 0.0\n        group["lr"] ='),
    "one group of several": ("rates", "for group in optimizer.param_groups:", "for group in optimizer.param_groups[1:]:"),
    "a rate for ever": ("rates", "0.1**epoch", "0.1**0"),
    "a rate of a tenth": ("rates", "0.5 * 0.1**epoch", "0.05 * 0.1**epoch"),
    "a rate that falls slowly": ("rates", "0.1**epoch", "0.5**epoch"),
}  # fmt: skip

SHAPES = {
    "the loss of training is another": ("rules/one_function", 'identity_loss(loss, reduction="none")', 'identity_loss(2 * loss, reduction="none")'),
    "evaluation in training mode": ("rules/one_function", "        model.eval()\n", ""),
    "averages of training are not renewed": ("rules/one_function", "        model.train()\n", "        model.eval()\n"),
    "the plain model of before": ("rules/one_function", "poptorch.inferenceModel(model", "poptorch.inferenceModel(__import__('copy').deepcopy(model)"),
    "a first rate from before": ("rules/warm_up", "        training_model.setOptimizer(optimizer)\n", ""),
    "another schedule": ("rules/warm_up", "warm_up(optimizer, 0.1", "warm_up(optimizer, 0.2"),
    "the weight of the first epoch": ("rules/annealed", "torch.as_tensor(beta)", "torch.tensor(0.25)"),
    "batches of half the rows": ("rules/unnamed_loaders", "batch_size=12", "batch_size=6"),
    "steps in another order": ("rules/step_functions", "for xb, yb in loader]", "for xb, yb in reversed(list(loader))]"),
    "half of the pairs": ("rules/zipped", "0.5 * criterion", "0.4 * criterion"),
    "the last rows": ("rules/cut_by_hand", "perm = torch.randperm(len(x))", "perm = torch.arange(len(x))"),
    "one row instead of several": ("rules/several_sizes", "(torch.ones(5, 4))", "(torch.ones(1, 4))"),
    "another best state": ("rules/early_stopping", "net.load_state_dict(best_state)\n", "pass\n"),
    "no decay of the rate": ("rules/configured", "            self.training_model.setOptimizer(self.optimizer)\n", ""),
}  # fmt: skip

CHANGES = {
    "weights are not sent": ("resumed", "if training_model.isCompiled():\n    training_model.copyWeightsToDevice()\n", ""),
    "weights are sent too early": ("resumed", 'model.load_state_dict(state["model"])\nif training_model.isCompiled():\n    training_model.copyWeightsToDevice()\n', 'if training_model.isCompiled():\n    training_model.copyWeightsToDevice()\nmodel.load_state_dict(state["model"])\n'),
    "loaded weights are fetched instead": ("resumed", "copyWeightsToDevice", "copyWeightsToHost"),
    "the optimizer's new state": ("resumed", 'optimizer.load_state_dict(state["optimizer"])\n', ""),
    "weights from the start": ("resumed", 'state["model"])\nif', '{name: torch.zeros_like(each) for name, each in state["model"].items()})\nif'),
    "nothing is loaded": ("resumed", 'model.load_state_dict(state["model"])\n', ""),
    "weights without averages": ("resumed", 'state["model"])\nif', '{name: each for name, each in state["model"].items() if "running" not in name}, strict=False)\nif'),
    "saved too late": ("resumed", 'torch.save({"model"', 'train()\ntorch.save({"model"'),
    "saved from a copy": ("resumed", '{"model": model.state_dict()', '{"model": nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).state_dict()'),
    "a whole model without its weights": ("rules/checkpoints", "torch.save(model,", "torch.save(torch.nn.Linear(4, 3),"),
    "the last model instead of the best": ("rules/reloaded", "    model = torch.load(f, weights_only=False)\n", "    pass\n"),
    "the smooth weights stay": ("rules/averaged", "        model.load_state_dict(self.backup)\n", "        pass\n"),
    "the smooth weights are not sent": ("rules/averaged", "        model.load_state_dict(self.shadow)\n        if training_model.isCompiled():\n            training_model.copyWeightsToDevice()\n", "        pass\n"),
}  # fmt: skip

RULES = {
    "Devices": DEVICES,
    "Several processes": PROCESSES,
    "Data loaders": LOADERS,
    "Optimizers": OPTIMIZERS,
    "Limits of gradients": LIMITS,
    "Training steps": TRAINING,
    "Mixed precision": AMP,
    "Evaluation": EVALUATION,
    "Schedulers": SCHEDULERS,
    "Learning rates": RATES,
    "Changes between updates": CHANGES,
    "Loops that people write": SHAPES,
}
#: What several rules do to whole loops.
SEVERAL = "Loops that people write"
#: These have tests of their own: what is blocked has no output.
ELSEWHERE = {"What cannot be ported", "Compute modes"}


def parameters():
    for rule, mistakes in RULES.items():
        for number, name in enumerate(mistakes):
            marks = [pytest.mark.long] if number >= ALWAYS else []
            yield pytest.param(rule, name, id=f"{rule}: {name}", marks=marks)


@pytest.fixture(scope="module")
def ports():
    """What each right port prints, once, with its text."""
    return {}


def right_port(name, ports):
    if name not in ports:
        program = HERE / "programs" / f"{name}.py"
        if program.exists():
            source = Source(program.name, program.read_text())
            text = port(Project([source])).after[program.name]
        else:
            program = HERE / "rules" / f"{name.removeprefix('rules/')}.in.py"
            _, text = port_fixtures.ported(HERE / "rules", name.removeprefix("rules/"))
        ports[name] = text, port_fixtures.printed(program)
    return ports[name]


def test_each_rule_that_computes_has_eight_mistakes():
    assert {rule.partition(",")[0] for rule in RULES} - {SEVERAL} | ELSEWHERE == {
        rule.title for rule in rules.RULES
    }
    assert min(map(len, RULES.values())) >= 8


@pytest.mark.usefixtures("in_process")
@pytest.mark.filterwarnings("ignore::poptorch.HostChangeWarning")  # it sees some of them, too
@pytest.mark.parametrize(("rule", "name"), [*parameters()])
def test_a_mistake_is_seen(rule, name, ports, tmp_path):
    program, right, wrong = RULES[rule][name]
    text, expected = right_port(program, ports)
    assert text.count(right) == 1, right
    broken = tmp_path / "broken.py"
    broken.write_text(text.replace(right, wrong))
    assert port_fixtures.printed(broken) != expected
