"""Random forwards of views, writes in place, constants, plain tensors and ``out=``, as source."""

import random
import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

Rows = tuple[torch.Tensor, torch.Tensor]


class Model(nn.Module):
    """State of every kind, and a forward made of source text.

    Attributes:
        source: statements that see ``self``, ``x``, ``C`` (a tensor of a closure) and ``out``.
    """

    def __init__(self, source: str = ""):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.fc = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        with torch.no_grad():
            self.fc.weight.copy_(torch.randn(4, 4, generator=generator) / 2)
            self.fc.bias.zero_()
        self.register_buffer("total", torch.zeros(3, 4))
        self.held = [self.scale, {"bias": self.fc.bias}]
        self.source = source
        self.names: dict[str, Any] = {"torch": torch, "F": F}
        self.reset()
        code = "\n".join(f"    {line}" for line in source.splitlines())
        exec(
            compile(f"def forward(self, x, y):\n{code or '    pass'}", "<random program>", "exec"),
            self.names,
        )
        self.names["self"] = self

    def reset(self) -> None:
        """Puts all plain tensors back to what they were, since a program starts from that."""
        self.plain = torch.arange(12.0).reshape(3, 4) / 6 - 1
        self.whole = torch.linspace(-1, 1, 16)
        self.part, self.other = self.whole[4:].view(3, 4), self.whole.view(4, 4)[:3]
        self.count = torch.tensor(2.0)
        self.names["C"] = torch.tensor([[0.5, -0.25, 1.0, 2.0]]).repeat(3, 1)

    def plain_tensors(self) -> list[torch.Tensor]:
        """Copies of them."""
        kept = (self.plain, self.whole, self.count, self.names["C"])
        return [tensor.detach().clone() for tensor in kept]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        """Runs the source; it returns a result and the loss."""
        return self.names["forward"](self, x, y)


def rows(seed: int) -> Rows:
    """One batch."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 4, generator=generator), torch.randn(3, 4, generator=generator)


def program(seed: int, length: int) -> str:
    """The source of a forward; the same for the same seed.

    Args:
        seed: of the choices.
        length: about how many statements.
    """
    choose = random.Random(seed)
    trial = Model()
    x, y = rows(0)
    names: dict[str, Any] = {**trial.names, "x": x, "y": y}
    lines: list[str] = []
    for index in range(length):
        line = _statement(choose, names, f"v{index}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # such as of an ``out`` of another shape
                exec(line, names)
        except (RuntimeError, IndexError, TypeError, ValueError, UserWarning):
            continue
        lines.append(line)
    return "\n".join([*lines, *_ending(choose, names)])


_SOURCES = (
    "x",
    "self.fc(x)",
    "self.plain",
    "self.part",
    "self.other",
    "C",
    "self.total",
    "self.fc.weight[:3]",
    "self.held[0] * x",
    "self.held[1]['bias'] + x",
    "torch.zeros(3, 4)",
    "torch.ones(3, 4)",
    "torch.arange(12.).reshape(3, 4)",
    "torch.full((3, 4), 0.5)",
    "torch.tensor([[1., 2., 3., 4.]]).repeat(3, 1)",
    "torch.empty_like(x).copy_(C)",
    "self.count.expand(3, 4)",
)
_VIEWS = (
    "{a}[0]",
    "{a}[1:]",
    "{a}[..., 1]",
    "{a}[..., ::2]",
    "{a}[:, None]",
    "{a}.t()",
    "{a}.transpose(0, -1)",
    "{a}.reshape(-1)",
    "{a}.view(-1)",
    "{a}.view(4, 3)",
    "{a}.flatten()",
    "{a}.unbind(0)[-1]",
    "{a}.unbind(-1)[0]",
    "{a}.chunk(2, -1)[1]",
    "{a}.split(1)[0]",
    "{a}.detach()",
    "{a}.data",
    "{a}.narrow(0, 0, 1)",
    "{a}.expand(3, 3, 4)",
    "{a}.diagonal()",
    "{a}.unfold(-1, 2, 1)",
    "{a}.squeeze()",
    "[{a}, {b}][0]",
    "dict(a={a}, b={b})['b']",
)
_VALUES = (
    "{a}.clone()",
    "{a} * 2",
    "{a} + {b}",
    "{a} * {b}.detach()",
    "{a} - {b}",
    "torch.tanh({a})",
    "{a}.relu()",
    "{a}.sum(0)",
    "{a}.mean()",
    "{a}.cumsum(0)",
    "torch.where({a} > 0, {a}, {b})",
    "{a}.masked_fill(C > 0.6, 0.0)",
    "torch.cat([{a}, {b}])",
    "torch.stack([{a}, {b}]).amax(0)",
    "{a}.contiguous()",
    "{a}.flip(0)",
    "F.softmax({a}, -1)",
    "{a} * float({b}.sum())",
    "{a} + {b}.detach().tolist()[0]",
    "({a} if {b}.mean() > 0 else -{a})",
    "{a} * {b}.detach().flatten()[0].item()",
)
_WRITES = (
    "{a}.add_(1)",
    "{a}.mul_(0.5)",
    "{a}.add_({b})",
    "{a}.copy_({b})",
    "{a}.sub_({b}.detach())",
    "{a}.zero_()",
    "{a}.fill_(0.25)",
    "{a}.tanh_()",
    "{a}.clamp_(-1, 1)",
    "{a}.masked_fill_(C > 0.6, 0.125)",
    "{a}[0] = 1",
    "{a}[..., 1] = {b}",
    "{a}[0] = {b}",
    "{a}[1:] *= 2",
    "{a}[..., 0] += {b}",
    "{a} += {b}",
    "{a}.index_add_(0, torch.tensor([0]), {b})",
    # Torch's own backward loses track of views of tensors that get another shape.
    "{a}.requires_grad or {a}.t_()",
    "self.count += 1",
    "self.count.mul_(float({b}.sum()) / 8)",
    "self.total.mul_(0.5).add_({b}.detach())",
)
# Clones where plain PyTorch reads what it has begun to write.
_OUTS = (
    "torch.add({a}.detach(), {b}.detach(), out={o})",
    "torch.mul({a}.detach(), 2, out={o})",
    "torch.cumsum({a}.detach().clone(), 0, out={o})",
    "torch.matmul({a}.detach().clone(), self.whole.view(4, 4).detach().clone(), out={o})",
    "F.normalize({a}.detach().clone(), out={o})",
    "torch.sum({a}.detach().clone(), 0, out={o})",
    "torch.cat([{a}.detach(), {b}.detach()], out={o})",
)
_TARGETS = ("torch.empty(3, 4)", "{c}", "self.plain", "torch.empty(4)", "{c}[0]")


def _statement(choose: random.Random, names: dict[str, Any], new: str) -> str:
    tensors = [name for name in names if name[0] == "v" and isinstance(names[name], torch.Tensor)]
    if len(tensors) < 2 or choose.random() < 0.15:
        return f"{new} = {choose.choice(_SOURCES)}"
    a, b, c = (choose.choice(tensors) for _ in range(3))
    kind = choose.random()
    if kind < 0.35:
        return choose.choice(_WRITES).format(a=a, b=b)
    if kind < 0.65:
        return f"{new} = {choose.choice(_VIEWS).format(a=a, b=b)}"
    if kind < 0.72:
        out = choose.choice(_TARGETS).format(c=c)
        return f"{new} = {choose.choice(_OUTS).format(a=a, b=b, o=out)}"
    return f"{new} = {choose.choice(_VALUES).format(a=a, b=b)}"


def _ending(choose: random.Random, names: dict[str, Any]) -> list[str]:
    tensors = [name for name in names if name[0] == "v" and isinstance(names[name], torch.Tensor)]
    used = [choose.choice(tensors) for _ in range(3)] if tensors else []
    total = " + ".join(["self.fc(x * self.scale)", *(f"{name}.sin().mean()" for name in used)])
    returned = choose.choice([*tensors, "x"])
    return [f"scores = {total}", f"return {returned} * 1, F.mse_loss(scores, y)"]
