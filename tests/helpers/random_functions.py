"""Random training functions of plain PyTorch, as source text that a seed determines.

Each source defines ``make()``, which returns four functions: ``before(call)`` changes state between
calls, ``step(x, y)`` trains, ``evaluate(x, y)`` does not, ``state()`` returns everything that both
may change. ``compiled`` and ``compiled_step`` are the decorators, names that the source expects.
"""

import random
import textwrap

CALLS = 8
_HEADER = """\
import copy
import random

import numpy
import torch
from torch import nn
from torch.nn import functional as F

FLAG = True
SCALE = 1.0
RATES = {"initial_lr": 0.1, "max_lr": 0.2, "min_lr": 0.01}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 4)
        self.inner, self.scale = nn.Linear(width, width), 1.0

    def forward(self, x):
        hidden = F.relu(self.first(x))
        return self.last(hidden + self.scale * torch.tanh(self.inner(hidden)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)
        self.second.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(6), persistent=False)

    def forward(self, x):
        hidden = F.gelu(self.second(F.gelu(self.first(x - self.mean))))
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.last(hidden)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.GRU(3, 5, batch_first=True), nn.Linear(5, 4)

    def forward(self, x):
        return self.last(self.layer(x.reshape(-1, 2, 3))[0][:, -1])


class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    state = self.state[param]
                    if not state:
                        state["mean"] = torch.zeros_like(param)
                    state["mean"].mul_(0.8).add_(param.grad)
                    param.add_(state["mean"], alpha=-group["lr"])


def decayed(module):
    matrices = [each for each in module.parameters() if each.dim() > 1]
    others = [each for each in module.parameters() if each.dim() <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]


def penalty(module):
    return sum(each.square().sum() for each in module.parameters())
"""
_OPTIMIZERS = (
    *("SGD({}, lr=0.1)", "SGD({}, lr=0.1, momentum=0.9)", "Adam({}, lr=0.01)", "AdamW({})"),
    *("SGD({}, lr=0.1, momentum=0.9, nesterov=True)", "SGD({}, lr=0.1, weight_decay=0.01)"),
    *("Adadelta({})", "Adafactor({})", "Adagrad({})", "Adamax({})", "ASGD({})", "NAdam({})"),
    *("RAdam({})", "RMSprop({})", "RMSprop({}, momentum=0.9, centered=True)", "Rprop({})"),
    *("Adam({}, maximize=True)", "Adam({}, foreach=True)", "SGD({}, lr=0.1, foreach=True)"),
)
_SCHEDULERS = (
    *("StepLR({}, 2)", "CosineAnnealingLR({}, 10)", "LinearLR({}, total_iters=5)"),
    *("ExponentialLR({}, 0.9)", "OneCycleLR({}, 0.2, total_steps=40, cycle_momentum=False)"),
)


class _Draw(random.Random):
    """Random decisions."""

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def some(self, lines, probability: float):
        """Return one of some lines in a list, or an empty list."""
        return [self.choice(lines)] if self.chance(probability) else []


def source(seed: int) -> str:
    """Return the module of one training function."""
    draw = _Draw(seed)
    style = draw.choice(("method", "method", "closure", "global"))
    setup = _setup(draw)
    names = [line[1:].split(" =")[0] for line in setup]
    step = _step(draw, names, style)
    before = _between(draw, names)
    evaluate = _evaluate(draw)
    parts = {"method": _method, "closure": _closure, "global": _global}[style](
        setup, step, evaluate, before, names
    )
    return f"{_HEADER}\n\n{parts}"


# -- parts of a function, with @ for the owner of variables ---------------------------------------


def _net(draw: _Draw) -> str:
    width = draw.choice((3, 8, 16))
    special = ("Tied()", "Recurrent()", f"Residual({width})", f"Residual({width})")
    if draw.chance(0.4):
        return draw.choice(special)
    if draw.chance(0.2):
        pool = draw.choice(("nn.ReLU()", "nn.Tanh()"))
        return (
            f"nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), "
            f"{pool}, nn.Flatten(), nn.Linear(8, 4))"
        )
    norms = (f"nn.LayerNorm({width})", f"nn.BatchNorm1d({width})", "nn.Identity()", "nn.Identity()")
    acts = ("nn.ReLU()", "nn.Tanh()", "nn.GELU()", "nn.SiLU()")
    drops = ("nn.Dropout(0.3)", "nn.Identity()")
    inside = [draw.choice(each) for each in (norms, acts, drops)]
    return f"nn.Sequential(nn.Linear(6, {width}), {', '.join(inside)}, nn.Linear({width}, 4))"


def _optimizer(draw: _Draw, module: str) -> str:
    if draw.chance(0.06):
        return f"Momentum({module}.parameters(), 0.1)"
    if draw.chance(0.05):
        return f"torch.optim.Muon([p for p in {module}.parameters() if p.dim() == 2])"
    chosen = draw.choice(_OPTIMIZERS)
    grouped = draw.chance(0.25) and "Rprop" not in chosen
    params = f"decayed({module})" if grouped else f"{module}.parameters()"
    return "torch.optim." + chosen.format(params)


def _setup(draw: _Draw) -> list[str]:
    lines = [f"@model = {_net(draw)}", f"@optimizer = {_optimizer(draw, '@model')}"]
    if draw.chance(0.35):
        lines.append("@other = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4))")
        lines.append(f"@second = {_optimizer(draw, '@other')}")
    if draw.chance(0.35):
        lines.append("@ema = copy.deepcopy(@model)")
    if draw.chance(0.3):
        chosen = draw.choice(_SCHEDULERS)
        lines.append(f"@scheduler = torch.optim.lr_scheduler.{chosen.format('@optimizer')}")
    lines += ["@flag = True", "@weight = 1.0", "@clip = 0.5", "@options = {'scale': [1.0, 2.0]}"]
    lines += ["@counter = 0", "@losses = []", "@history = {}"]
    lines += draw.some(["@running = torch.zeros(4)"], 0.2)
    return lines


def _forward(draw: _Draw, names: list[str]) -> list[str]:
    """Return lines that compute ``out`` and ``loss``."""
    losses = ["F.cross_entropy(out, y)", "F.cross_entropy(out, y, label_smoothing=0.1)"]
    losses.append("F.mse_loss(out, F.one_hot(y, 4).float())")
    lines = ["out = @model(x)", f"loss = {draw.choice(losses)}"]
    if draw.chance(0.15):
        lines = ["with torch.autocast('cpu', dtype=torch.bfloat16):", *_indented(lines)]
        lines.append("out = out.float()")
    lines += draw.some(
        (
            *("loss = loss * @weight", "loss = loss * SCALE", "loss = loss * @options['scale'][0]"),
            "loss = loss + 0.001 * penalty(@model)",
            *("if @flag:\n    loss = loss * 2", "if FLAG:\n    loss = loss + out.mean()"),
        ),
        0.6,
    )
    if "running" in names:
        lines.append("@running.mul_(0.9).add_(out.detach().mean(0), alpha=0.1)")
    return lines


def _step(draw: _Draw, names: list[str], style: str) -> list[str]:
    body = draw.some(
        (
            *("x = x + 0.1 * torch.randn_like(x)", "x = x * (1 + @counter % 2)"),
            *("if random.random() < 0.5:\n    x = x.flip(1)", "x = x * float(numpy.random.rand())"),
            *("@counter += 1", "if x.shape[0] < 4:\n    x = x * 2"),
        ),
        0.25,
    )
    zero = draw.choice(
        (
            *("@optimizer.zero_grad()", "@optimizer.zero_grad()", "@model.zero_grad()"),
            "@optimizer.zero_grad(set_to_none=False)",
            "for param in @model.parameters():\n    param.grad = None",
        )
    )
    first = draw.chance(0.6)
    body += [zero] if first else []
    body += _backward(draw, names)
    body += draw.some(
        (
            "nn.utils.clip_grad_norm_(@model.parameters(), 1.0)",
            "if @clip:\n    nn.utils.clip_grad_norm_(@model.parameters(), @clip)",
            "nn.utils.clip_grad_value_(@model.parameters(), 0.05)",
            "norm = nn.utils.clip_grad_norm_(@model.parameters(), 0.7)",
        ),
        0.5,
    )
    early = draw.some(_STATEMENTS, 0.15)
    body += early if "out = out.detach()" not in early[:1] else []
    body += ["@optimizer.step()"] + ([] if first or draw.chance(0.1) else [zero])
    body += _after(draw, names)
    return [*body, *_host(draw), *_returned(draw)]


def _backward(draw: _Draw, names: list[str]) -> list[str]:
    forward = _forward(draw, names)
    if draw.chance(0.2):
        loop = "for x, y in zip(x.chunk(2), y.chunk(2)):"
        return [loop, *_indented([*forward, "(loss / 2).backward()"])]
    if draw.chance(0.1):
        gradients = "gradients = torch.autograd.grad(loss, list(@model.parameters()))"
        loop = "for param, gradient in zip(@model.parameters(), gradients):"
        return [*forward, gradients, loop, "    param.grad = gradient"]
    if draw.chance(0.08):
        first = "first = torch.autograd.grad(loss, next(@model.parameters()), create_graph=True)[0]"
        return [*forward, first, "(loss + 0.01 * first.square().sum()).backward()"]
    return [*forward, "loss.backward()"]


_AVERAGES = (
    "each.mul_(0.9).add_(param, alpha=0.1)",
    "each.lerp_(param, 0.1)",
    "each.data = 0.9 * each.data + 0.1 * param.data",
    "each.data.mul_(0.9).add_(param.data, alpha=0.1)",
    "each.copy_(0.9 * each + 0.1 * param)",
)


def _after(draw: _Draw, names: list[str]) -> list[str]:
    lines: list[str] = []
    if "other" in names:
        joint = draw.chance(0.3)
        value = "@other(@model(x))" if joint else "@other(out.detach())"
        lines += ["@second.zero_grad()"] if draw.chance(0.9) else []
        lines += [
            f"extra = F.mse_loss({value}, torch.ones_like(out))",
            "extra.backward()",
            "@second.step()",
        ]
    if "scheduler" in names and draw.chance(0.7):
        lines.append("@scheduler.step()")
    if "ema" in names:
        update = draw.choice(_AVERAGES)
        loop = "for each, param in zip(@ema.parameters(), @model.parameters()):"
        lines += ["with torch.no_grad():", *_indented([loop, f"    {update}"])]
    return lines


_STATEMENTS = (
    *("@losses.append(loss.item())", "@losses.append(loss.detach())", "@counter += 1"),
    *("@history['loss'] = loss.item()", "@history['last'] = out.detach()"),
    "@history.setdefault('rows', []).append(x.shape[0])",
    "@history['best'] = min(@history.get('best', 9.0), loss.item())",
    "if loss.item() > 1.0:\n    @history['high'] = @history.get('high', 0) + 1",
    "if @counter % 2 == 0:\n    @losses.append(float(loss))",
    "@history['text'] = f'{@counter}: {loss.item():.3f} {out.shape}'",
    "value = loss.item()\n@losses.append((value, value * 2))",
    "value = round(float(loss), 3)\nif value < 1.0:\n    @losses.append(value)",
    "right = (out.argmax(1) == y[: len(out)]).float().mean().item()\n@history['right'] = right",
    "@losses += [loss.item()]",
    "@losses[-3:] = [0.0]",
    "@losses.append([part.item() for part in out.detach().mean(0)])",
    "@losses.append({'loss': loss.detach().clone(), 'rows': out.shape[0]})",
    "for index in range(2):\n    @losses.append(index * loss.item())",
    "@losses.append(out.detach().numpy().sum())",
    "@losses.append(next(@model.parameters()).sum().item())",
    "@losses.append(next(@model.parameters()).detach().clone())",
    "@losses.append(sum(p.detach().norm().item() for p in @model.parameters()))",
    "@losses.append(@optimizer.param_groups[0]['lr'])",
    "@counter, @history['pair'] = @counter + 1, loss.item()",
    "assert loss.item() < 1e6, 'diverged'",
    "@history = {**@history, 'new': loss.item()}",
    "both = loss.item() + len(@losses)\n@losses.append(both)",
    "copied = loss.detach().clone()\n@losses.append(copied.item())",
    "out = out.detach()\n@history['top'] = out.max().item()",
    "del @losses[:1]",
)


def _host(draw: _Draw) -> list[str]:
    return [draw.choice(_STATEMENTS) for _ in range(draw.choice((0, 1, 1, 2, 2, 3)))]


def _returned(draw: _Draw) -> list[str]:
    values = (
        *(
            "loss",
            "loss",
            "loss.item()",
            "loss.detach()",
            "{'loss': loss.item(), 'out': out.detach()}",
        ),
        *("(loss, out.argmax(1))", "out.detach(), (out.argmax(1) == y).sum().item()"),
        *("float(loss), @optimizer.param_groups[0]['lr']", "[loss, None, 'text', 3]", ""),
        "f'{loss.item():.4f}'",
    )
    return [f"return {draw.choice(values)}".strip()]


def _evaluate(draw: _Draw) -> list[str]:
    return draw.choice(
        (
            ["with torch.no_grad():", "    return F.cross_entropy(@model(x), y)"],
            ["with torch.no_grad():", "    return (@model(x).argmax(1) == y).sum().item()"],
            [
                *("was = @model.training", "@model.eval()", "with torch.no_grad():"),
                *("    result = @model(x)", "@model.train(was)", "return result"),
            ],
        )
    )


_EVENTS = (
    "for group in @optimizer.param_groups:\n    group['lr'] = group['lr'] * 0.5",
    "@optimizer.param_groups[0]['weight_decay'] = 0.05",
    "@saved.update(model=copy.deepcopy(@model.state_dict()))",
    "@saved.update(optimizer=copy.deepcopy(@optimizer.state_dict()))",
    "'model' in @saved and @model.load_state_dict(@saved['model'])",
    "'optimizer' in @saved and @optimizer.load_state_dict(@saved['optimizer'])",
    "next(@model.parameters()).requires_grad_(False)",
    "next(@model.parameters()).requires_grad_(True)",
    "list(@model.parameters())[-1].requires_grad = call % 2 == 0",
    "next(@model.parameters()).data = next(@model.parameters()).data * 0.5",
    "with torch.no_grad():\n    list(@model.parameters())[-1].add_(0.1)",
    "@flag = not @flag",
    "@weight = @weight + 1.0",
    "@clip = None if @clip else 0.3",
    "@options['scale'][0] = 3.0",
    "globals().update(FLAG=not FLAG)",
    "globals().update(SCALE=SCALE + 1.0)",
    "@model.train(call % 2 == 0)",
    "@optimizer.zero_grad()",
    "@optimizer.state.clear()",
    "torch.manual_seed(call)",
    "list(@model.children())[-1].register_forward_hook(lambda m, i, o: o * 2)",
    "next(@model.parameters()).register_hook(lambda gradient: gradient * 0.5)",
    "F.cross_entropy(@model(torch.ones(2, 6)), torch.tensor([0, 1])).backward()",
    "list(@model.children())[-1].bias = nn.Parameter(torch.ones(4))",
    "@optimizer.add_param_group({'params': [nn.Parameter(torch.ones(2))], **RATES})",
    "@losses.clear()",
    "@history = {}",
)


def _between(draw: _Draw, names: list[str]) -> list[str]:
    """Return the body of ``before(call)``."""
    events = [*_EVENTS]
    if "ema" in names:
        events.append("@model.load_state_dict(@ema.state_dict())")
    lines: list[str] = []
    for _ in range(draw.choice((0, 0, 1, 2, 3, 4))):
        call = draw.randrange(1, CALLS)
        lines += [f"if call == {call}:", *_indented([draw.choice(events)])]
    return lines or ["pass"]


# -- a function in its surroundings ---------------------------------------------------------------


def _indented(lines: list[str]) -> list[str]:
    return [f"    {part}" for line in lines for part in line.split("\n")]


def _written(lines: list[str], owner: str, indent: int) -> str:
    text = "\n".join(lines).replace("@", owner)
    return textwrap.indent(text, " " * indent)


def _method(setup, step, evaluate, before, names) -> str:
    state = ", ".join(f"{name}=self.{name}" for name in names)
    return f"""\
class Trainer:
    def __init__(self):
{_written(setup, "self.", 8)}
        self.saved = {{}}

    def before(self, call):
{_written(before, "self.", 8)}

    [at]compiled_step
    def step(self, x, y):
{_written(step, "self.", 8)}

    [at]compiled
    def evaluate(self, x, y):
{_written(evaluate, "self.", 8)}

    def state(self):
        return dict({state})


def make():
    trainer = Trainer()
    return trainer.before, trainer.step, trainer.evaluate, trainer.state
""".replace("[at]", "@")


_PLAIN_NAMES = ("flag", "weight", "clip", "counter", "history", "losses")
_RETURNED = "    return before, step, evaluate, state\n"


def _closure(*parts) -> str:
    return f"def make():\n{textwrap.indent(_functions('nonlocal', *parts), '    ')}{_RETURNED}"


def _global(*parts) -> str:
    return f"{_functions('global', *parts)}\n\ndef make():\n{_RETURNED}"


def _functions(keyword, setup, step, evaluate, before, names) -> str:
    declared = f"{keyword} {', '.join(_PLAIN_NAMES)}"
    state = ", ".join(f"{name}={name}" for name in names)
    return f"""\
{_written(setup, "", 0)}
saved = {{}}


def before(call):
    {declared}
{_written(before, "", 4)}


[at]compiled_step
def step(x, y):
    {declared}
{_written(step, "", 4)}


[at]compiled
def evaluate(x, y):
{_written(evaluate, "", 4)}


def state():
    return dict({state})
""".replace("[at]", "@")
