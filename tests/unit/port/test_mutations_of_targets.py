# ruff: noqa: E501 (lines of programs)
"""No mistake in a port to plain PyTorch goes unnoticed: each changes what is printed.

Each rule has at least ten, of which the first few always run. A broken port that fails is noticed, too.
"""

from pathlib import Path

import pytest

from abele.port.rules import BY_TARGET
from helpers import port_fixtures

pytestmark = pytest.mark.usefixtures("in_process")
HERE = Path(__file__).parent
FOLDERS = {"torch": HERE / "rules_torch"}
#: How many of a rule's mistakes run where long tests do not.
ALWAYS = 3

OPTIONS = {
    "another seed": ("training", "torch.manual_seed(3)", "torch.manual_seed(4)"),
    "no seed": ("training", "    torch.manual_seed(3)\n", ""),
    "one iteration": ("batches", "iterations=2, parts=ACCUMULATION\n", "parts=2 * ACCUMULATION\n"),
    "no accumulation": ("batches", "iterations=2, parts=ACCUMULATION\n", "iterations=2 * ACCUMULATION\n"),
    "fewer parts": ("batches", "iterations=2, parts=ACCUMULATION\n", "iterations=2, parts=2\n"),
    "the first replicas": ("batches", "kept[-replicas:]", "kept[:1]"),
    "a mean for a sum": ("batches", "            results[1].backward()", "            (results[1] / parts).backward()"),
    "a sum for a mean": ("batches", "(results[1] / parts).backward()", "results[1].backward()"),
    "a seed twice": ("training", "    model = Net()\n    train", "    model = Net()\n    torch.manual_seed(3)\n    train"),
    "the seed too late": ("training", "    torch.manual_seed(3)\n    data = TensorDataset(torch.randn(44, 4), torch.randint(0, 3, (44,)))\n", "    data = TensorDataset(torch.randn(44, 4), torch.randint(0, 3, (44,)))\n    torch.manual_seed(3)\n"),
    "iterations for accumulation": ("batches", "x, y, parts=2, replicas=2)", "x, y, iterations=2, replicas=2)"),
    "the last results alone": ("batches", "for column in zip(*kept, strict=True))", "for column in zip(*kept[-1:], strict=True))"),
    "arguments in another order": ("training", "    test(model, data=data)", "    test(data, model)"),
}  # fmt: skip

#: Of one process; mistakes of several are in check/test_instances.py.
INSTANCES = {
    "another process": ("instances", 'os.environ.get("RANK", "0")', 'os.environ.get("RANK", "1")'),
    "two processes": ("instances", 'os.environ.get("WORLD_SIZE", "1")', 'os.environ.get("WORLD_SIZE", "2")'),
    "the log of another process": ("instances", "if RANK == 0:\n        print", "if RANK == 1:\n        print"),
    "the share of one process": ("instances", "if WORLD_SIZE > 1:", "if WORLD_SIZE > 0:"),
    "replicas for processes": ("instances", "len(loader) * 4 * WORLD_SIZE", "len(loader) * 4 * RANK"),
    "saved by another process": ("instances", "if RANK == 0:\n    torch.save", "if RANK == 1:\n    torch.save"),
    "called in others": ("instances", "if RANK in {0, 1} else None", "if RANK not in {0, 1} else None"),
    "the state of a part": ("instances", "unwrapped(training).state_dict()", "unwrapped(training).layer.state_dict()"),
    "a short batch": ("instances", "sampler=sampler, drop_last=True", "sampler=sampler, drop_last=False"),
    "another offset": ("instances_batches", "return None, 0", "return None, 1"),
    "replicas of several processes": ("instances_batches", "2 * 2 * (1 if torch.distributed.is_torchelastic_launched() else REPLICAS)", "2 * 2 * 1"),
    "twice the sum": ("instances_batches", "torch.full_like(results[1], WORLD_SIZE)", "torch.full_like(results[1], 2 * WORLD_SIZE)"),
}  # fmt: skip

LOADERS = {
    "no shuffling": ("training", "shuffle=True", "shuffle=False"),
    "another size": ("training", "batch_size=8, shuffle", "batch_size=4, shuffle"),
    "a short batch in training": ("training", "shuffle=True, drop_last=True", "shuffle=True"),
    "a short batch in evaluation": ("training", "DataLoader(data, batch_size=8, drop_last=True)", "DataLoader(data, batch_size=8)"),
    "smaller batches": ("batches", "4 * 2 * ACCUMULATION", "4 * ACCUMULATION"),
    "one replica": ("batches", "batch_size=8 * 2", "batch_size=8"),
    "some of the data": ("training", "        data, batch_size=8, shuffle=True", "        torch.utils.data.Subset(data, range(20)), batch_size=8, shuffle=True"),
    "the order of a sampler": ("training", "shuffle=True", "sampler=range(43, -1, -1)"),
    "larger batches": ("batches", "batch_size=8 * 2", "batch_size=8 * 4"),
    "all rows at once": ("operators", "torch.randn(32, 3)), 8,", "torch.randn(32, 3)), 32,"),
    "another size by place": ("batches", "DataLoader(data, 4 * 2 * ACCUMULATION,", "DataLoader(data, 5 * 2 * ACCUMULATION,"),
    "the last rows again": ("script", "DataLoader(data, batch_size=8, drop_last=True)", "DataLoader(data[8:] and torch.utils.data.Subset(data, [*range(24), *range(24)]), batch_size=8, drop_last=True)"),
}  # fmt: skip

OPTIMIZERS = {
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
    "the limit twice as large for some": ("optimizers", "torch.nn.utils.clip_grad_norm_(training.parameters(), 0.5)", "torch.nn.utils.clip_grad_norm_(training.layer.parameters(), 0.5)"),
    "no limit of the first": ("optimizers", "    torch.nn.utils.clip_grad_norm_(training.parameters(), 0.5)\n", ""),
}  # fmt: skip

OPERATORS = {
    "the mean for the sum": ("operators", "loss = loss.sum()", "loss = loss.mean()"),
    "no matrix": ("operators", "x = torch.matmul(x, torch.eye(3))", "x = torch.matmul(x, 2 * torch.eye(3))"),
    "the way for the device": ("operators", "        if False:\n            pass\n", "        if True:\n            x = 2 * x\n"),
    "a layer left out": ("operators", "self.third(self.second(x).unsqueeze(2)).squeeze(2)", "self.second(x)"),
    "no factor": ("operators", "return result, 0.5 * loss", "return result, loss"),
    "the sum of each row": ("operators", ".square().mean(1)", ".square().sum(1)"),
    "no activation": ("operators", "x = torch.tanh(self.first(x))", "x = self.first(x)"),
    "a detached part": ("operators", "self.second(x).unsqueeze(2)", "self.second(x).detach().unsqueeze(2)"),
    "a matrix of ones": ("operators", "torch.eye(3)", "torch.ones(3, 3)"),
    "twice the mean": ("switch", "loss = loss.mean()", "loss = 2 * loss.mean()"),
    "the first layer twice": ("operators", "x = torch.tanh(self.first(x))", "x = torch.tanh(self.first(x)) + self.first(x)"),
}  # fmt: skip

STEPS = {
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
    "other rows": ("batches", "for each in column]) for column in zip(*kept, strict=True))", "for each in column[::-1]]) for column in zip(*kept, strict=True))"),
    "another loss of replicas": ("batches", "(scores - y).square().mean()", "(scores - y).square().sum()"),
    "training in the other mode": ("modes", "    training_model.train()\n", ""),
    "the mode set too early": ("modes", "    training_model.train()\n", "    training_model.eval()\n"),
}  # fmt: skip

INFERENCE = {
    "inference in the other mode": ("modes", "    inference_model.eval()\n    with", "    with"),
    "inference trains": ("modes", "        scores = inference_model(x)", "        scores = inference_model.train()(x)"),
    "old weights": ("modes", "inference_model = model", "inference_model = __import__('copy').deepcopy(model)"),
    "averages are renewed": ("modes", "    inference_model.eval()\n", "    inference_model.train()\n"),
    "another batch": ("modes", "scores = inference_model(x)", "scores = inference_model(2 * x)"),
    "other rows": ("training", "inference_model(x).argmax(1)", "inference_model(x.flip(0)).argmax(1)"),
    "the mode of training": ("training", "model.eval()", "model"),
    "the model around it": ("operators", "inference = model", "inference = half"),
    "an update": ("operators", "        outputs, loss = inference(x, y)\n", "        outputs, loss = inference(x, y)\n    optimizer.step()\n"),
    "weights of a new model": ("script", "poptorch_model = model\nfor x, y in islice", "poptorch_model = Net().eval()\nfor x, y in islice"),
    "the mode set too late": ("modes", "    inference_model.eval()\n    with torch.no_grad():\n        scores = inference_model(x)\n", "    with torch.no_grad():\n        scores = inference_model(x)\n    inference_model.eval()\n"),
}  # fmt: skip

WRAPPERS = {
    "the change of the rate goes with the line that tells of it": ("wrappers", '        optimizer.param_groups[0]["lr"] = 0.05\n', "        pass\n"),
    "the scheduler goes with the line that tells of it": ("training", "        scheduler.step()\n", ""),
    "told of a new optimizer": ("wrappers", '        optimizer.param_groups[0]["lr"] = 0.05\n', "        optimizer = torch.optim.SGD(fit.parameters(), lr=0.05, momentum=0.9)\n"),
    "weights that are set go with the line that sends them": ("wrappers", "            fit.layer.bias.zero_()\n", "            pass\n"),
    "the condition turned around": ("wrappers", "    if True:\n", "    if False:\n"),
    "the condition stays": ("wrappers", "    if True:\n", "    if training.isCompiled():\n"),
    "the model of a model": ("wrappers", "print(training is fit)", "print(training.layer is fit)"),
    "another model": ("wrappers", "print(training.layer.bias", "print(Fit().layer.bias"),
    "a copy": ("wrappers", "training = fit", "training = __import__('copy').deepcopy(fit)"),
    "told of its optimizer": ("wrappers", '        optimizer.param_groups[0]["lr"] = 0.05\n', '        optimizer.param_groups[0]["lr"] = 0.05\n        training.setOptimizer(optimizer)\n'),
    "the line that ends it stays": ("wrappers", "print(training is fit)", "print(training is fit)\ntraining.destroy()"),
    "the first call is a compilation": ("wrappers", "for step in range(6):", "training(x, y).backward()\noptimizer.step()\nfor step in range(6):"),
}  # fmt: skip

RULES = {
    "torch": {
        "Instances": INSTANCES,
        "Options": OPTIONS,
        "Data loaders": LOADERS,
        "Optimizers": OPTIMIZERS,
        "Operators": OPERATORS,
        "Training models": STEPS,
        "Inference models": INFERENCE,
        "Wrappers": WRAPPERS,
    },
}
#: Of these nothing is computed: what is blocked has no output, and imports are taken out.
ELSEWHERE = {"What cannot be ported", "What is left"}


def parameters():
    for target, by_rule in RULES.items():
        for rule, mistakes in by_rule.items():
            for number, name in enumerate(mistakes):
                marks = [pytest.mark.long] if number >= ALWAYS else []
                yield pytest.param(target, rule, name, id=f"{target}, {rule}: {name}", marks=marks)


@pytest.mark.parametrize("target", RULES)
def test_each_rule_that_computes_has_ten_mistakes(target):
    titles = {rule.title for rule in BY_TARGET[target]}
    assert {*RULES[target]} == titles - ELSEWHERE
    assert min(map(len, RULES[target].values())) >= 10


@pytest.fixture(scope="module")
def prints():
    """What each right port prints, once; tests of the rules compare it with the original."""
    return {}


@pytest.mark.parametrize(("target", "rule", "name"), [*parameters()])
def test_a_mistake_is_seen(target, rule, name, prints, tmp_path):
    fixture, right, wrong = RULES[target][rule][name]
    port = FOLDERS[target] / f"{fixture}.out.py"
    text = port.read_text()
    assert text.count(right) == 1, right
    if port not in prints:
        prints[port] = port_fixtures.printed(port)
    broken = tmp_path / "broken.py"
    broken.write_text(text.replace(right, wrong))
    try:
        assert port_fixtures.printed(broken) != prints[port]
    except AssertionError:
        raise
    except Exception:  # noqa: BLE001 - a port that does not run is taken for right by nobody
        return
