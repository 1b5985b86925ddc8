"""Random forwards of tensors of all types, as source: casts, integers, truth values, halves, NaN.

The statements are templates of Python. A letter stands for an earlier tensor: ``{a}``, ``{b}`` and
``{c}`` for any, ``{f}`` and ``{g}`` for floating ones, ``{i}`` and ``{j}`` for integers and ``{m}``
for truth values. Indices are taken modulo what they index, and nothing is divided by an integer
that may be 0 or -1: plain PyTorch ends the process where the lowest integer is divided by -1.
"""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele.capture.losses import mark_loss

Tensors = list[torch.Tensor]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
INPUTS = (*FLOATS, *WHOLE, torch.bool)
# The usual one, vectors of odd lengths, one element, none, and enough for several threads.
SHAPES = ((3, 4), (3, 4), (3, 4), (5, 7), (1, 1), (1, 33), (0, 4), (2, 3, 4), (130, 257))
_MOST, _RETURNED = 300_000, 16
_LOSSES = ("F.cross_entropy", "F.nll_loss", "F.binary_cross_entropy")
_LETTERS = "abcfgijm"


class Typed(nn.Module):
    """State of several types, and a forward made of source text.

    Attributes:
        source: statements that see ``self``, the inputs ``x0``, ``x1``... and ``C``.
    """

    def __init__(self, source: str, inputs: int):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.fc, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        with torch.no_grad():
            self.fc.weight.copy_(torch.randn(4, 4, generator=generator) / 2)
            self.fc.bias.fill_(0.25)
        self.register_buffer("count", torch.tensor(2))
        self.register_buffer("table", torch.arange(12, dtype=torch.int32).view(3, 4) - 5)
        self.source = source
        self.names: dict[str, Any] = {"torch": torch, "F": F, "self": self, "mark": mark_loss}
        self.names["C"] = torch.tensor([[3, -7, 0, 127]])
        arguments = ", ".join(f"x{i}" for i in range(inputs))
        code = "\n".join(f"    {line}" for line in source.splitlines())
        text = f"def forward(self, {arguments}):\n{code or '    pass'}"
        exec(compile(text, "<random program>", "exec"), self.names)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Runs the source."""
        return self.names["forward"](self, *inputs)


def batch(seed: int, number: int = 0) -> Tensors:
    """One tensor of each type, in a random order in memory.

    Args:
        seed: of shape, order and kind of values.
        number: another batch of the same shapes and orders.
    """
    choose = random.Random(seed)
    shape, odd = choose.choice(SHAPES), choose.random() < 0.3
    generator = torch.Generator().manual_seed(1000 * number + seed % 1000)
    return [_ordered(choose, _values(generator, dtype, shape, odd)) for dtype in INPUTS]


def copies(tensors: Tensors) -> Tensors:
    """The same values in the same orders in memory."""
    return [
        torch.empty_strided(each.shape, each.stride(), dtype=each.dtype).copy_(each)
        for each in tensors
    ]


def _values(
    generator: torch.Generator, dtype: torch.dtype, shape: tuple[int, ...], odd: bool
) -> torch.Tensor:
    """Numbers of a type, with its extremes among them if they are to be ``odd``."""
    if dtype is torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 2.5, -0.5])
    else:
        values = torch.randint(-9, 10, shape, generator=generator)
        limits = torch.iinfo(dtype)
        special = torch.tensor([limits.min, limits.max, limits.min + 1, 0, 1, limits.max // 2])
    result = values.abs().to(dtype) if dtype is torch.uint8 else values.to(dtype)
    if odd and result.numel():
        special = special.to(dtype)
        which = torch.randint(0, len(special), shape, generator=generator)
        result = torch.where(torch.rand(shape, generator=generator) < 0.2, special[which], result)
    return result


def _ordered(choose: random.Random, value: torch.Tensor) -> torch.Tensor:
    """The same values in one of several orders in memory."""
    kind = choose.random()
    if kind < 0.6:
        return value
    if kind < 0.75:
        return value.transpose(0, -1).contiguous().transpose(0, -1)
    wide = torch.zeros((*value.shape[:-1], 2 * value.shape[-1]), dtype=value.dtype)
    wide[..., ::2] = value
    return wide[..., ::2]


def program(seed: int, length: int, *, training: bool) -> str:
    """The source of a forward; the same for the same arguments.

    Args:
        seed: of the choices, and of ``batch``.
        length: about how many statements.
        training: return a loss behind the results.
    """
    choose = random.Random(seed)
    names: dict[str, Any] = dict(Typed("", len(INPUTS)).names)
    given = copies(batch(seed))
    lines = []
    for i, each in enumerate(given):
        names[f"x{i}"] = each
        lines.append(f"v{i} = x{i}")
    _run("\n".join(lines), names)
    for index in range(len(given), len(given) + length):
        line = _statement(choose, names, f"v{index}")
        if line is not None and _run(line, names):
            lines.append(line)
    return "\n".join([*lines, *_ending(choose, names, lines, training=training)])


def _run(line: str, names: dict[str, Any]) -> bool:
    """Whether plain PyTorch takes a statement."""
    before = dict(names)
    try:
        with warnings.catch_warnings():
            # Torch warns once in a process, and a seed means the same program in all of them.
            warnings.simplefilter("ignore")
            exec(line, names)
    except (RuntimeError, IndexError, TypeError, ValueError):
        names.clear()
        names.update(before)
        return False
    made = names.get(line.split(" ")[0])
    if isinstance(made, torch.Tensor) and (made.numel() > _MOST or made.dim() > 5):
        del names[line.split(" ")[0]]
        return False
    return True


_TYPES = tuple(str(each) for each in INPUTS)
_SMALL = "{f}.nan_to_num(0, 9, -9).clamp(-99, 99)"

SOURCES = (
    "torch.tensor([[1, -2, 3, 4]])",
    "torch.tensor([0.5, -1.5, 2.0, 7.0], dtype=torch.float64)",
    "torch.arange(4)",
    "torch.arange(12, dtype=torch.int32).view(3, 4)",
    "torch.tensor(2.5)",
    "torch.tensor(7)",
    "torch.tensor(True)",
    "torch.zeros(3, 4, dtype=torch.int8)",
    "torch.ones(1, 4, dtype=torch.uint8)",
    "torch.full((3, 4), -3)",
    "torch.empty(0, 4)",
    "torch.eye(4, dtype=torch.bool)",
    "torch.linspace(-1, 1, 4)",
    "C",
    "C.expand(3, 4)",
    "self.count",
    "self.table",
    "self.table[1]",
    "self.fc.weight",
    "self.scale",
    "self.scale.half()",
    "self.fc.weight.to(torch.bfloat16)",
)
VIEWS = (
    "{a}[0]", "{a}[1:]", "{a}[..., 1]", "{a}[..., ::2]", "{a}[:, None]", "{a}.t()",
    "{a}.transpose(0, -1)", "{a}.reshape(-1)", "{a}.view(-1)", "{a}.flatten(1)", "{a}[1:1]",
    "{a}.unbind(0)[-1]", "{a}.chunk(2, -1)[1]", "{a}.split(1)[0]", "{a}.detach()",
    "{a}.expand(2, *{a}.shape)", "{a}.diagonal()", "{a}.unfold(-1, 2, 1)", "{a}.squeeze()",
    "{a}.unsqueeze(-1)", "{a}.movedim(0, -1)", "{a}.narrow(0, 0, 1)", "{a}[-1:]",
    "{a}.view(torch.int32)", "{a}.view(torch.int16)", "{a}.mT", "{a}[..., -1:]",
)  # fmt: skip
CASTS = (
    *(f"{{i}}.to({name})" for name in _TYPES),
    *(f"{{m}}.to({name})" for name in _TYPES),
    *(f"{{f}}.to({name})" for name in _TYPES[:4]),
    *(f"{_SMALL}.to({name})" for name in _TYPES[4:8]),
    "{f}.nan_to_num(0, 9, 9).abs().clamp(0, 200).to(torch.uint8)",
    "{a}.bool()", "{a}.float()", "{a}.double()", "{a}.half()", "{a}.bfloat16()", "{a}.type_as({f})",
    "{i}.long()", "{m}.long()", "{m}.int()", "{f}.float().half().float()",
)  # fmt: skip
ARITHMETIC = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / {b}", "{a} + 1", "{a} * 3", "{a} - 2.5",
    "{a} * 0.1", "{a} / 3", "1 - {a}", "2.5 / {a}", "{a} ** 2", "{f} ** 0.5", "{i} ** 3",
    "2 ** {f}", "{i} ** {m}", "{a} // 3", "{a} // -3", "{a} % 5", "{a} % -5", "{a} // 2.5",
    "torch.fmod({a}, 3)", "torch.fmod({a}, -4)", "{f} // {g}", "{f} % {g}", "torch.fmod({f}, {g})",
    *(f"torch.div({{a}}, {n}, rounding_mode={m!r})" for n in (3, -4) for m in ("floor", "trunc")),
    *(f"torch.div({{f}}, {{g}}, rounding_mode={m!r})" for m in ("floor", "trunc")),
    *(f"torch.div({{i}}, ({{j}} | 1).abs(), rounding_mode={m!r})" for m in ("floor", "trunc")),
    "{i} // ({j} | 1).abs()", "{i} % ({j} | 1).abs()", "{i} // -(({j} & 7) + 2)",
    "{i} % -(({j} & 7) + 2)", "torch.fmod({i}, -(({j} & 7) + 2))", "torch.true_divide({i}, {j})",
    "torch.add({a}, {b}, alpha=2)", "torch.sub({a}, {b}, alpha=3)", "torch.rsub({a}, {b})",
    "torch.addcmul({a}, {b}, {c}, value=2)", "torch.addcmul({f}, {f}, {g}, value=0.5)",
    "torch.addcdiv({f}, {f}, {g})", "torch.lerp({f}, {f}, 0.3)", "torch.mul({a}, True)",
    "{a} * {a} + {b}", "({i} * 1103515245 + 12345) % 2147483648", "{i} * 31 + {j}",
    "({i} + 1 > {i}).long()", "({i} * 2) // 2", "-{i} - 1", "{i}.abs() + {j}.abs()",
)  # fmt: skip
COMPARISONS = (
    *(f"{{a}} {sign} {{b}}" for sign in ("==", "!=", "<", "<=", ">", ">=")),
    *(f"{{a}} {sign} {n}" for sign in ("==", "<", ">=") for n in (0, 1.5, -1, 300)),
    "{i} == {i}.flip(0)", "torch.isnan({a})", "torch.isfinite({a})", "torch.isinf({a})",
    "torch.signbit({a})", "torch.logical_and({a}, {b})", "torch.logical_or({a}, {b})",
    "torch.logical_xor({a}, {b})", "torch.logical_not({a})", "torch.isclose({f}, {f})",
    "{m} & {m}", "{m} | ({a} > 0)", "{m} ^ True", "~{m}", "torch.isin({i}, C)", "{m} == 1",
)  # fmt: skip
BITS = (
    "{i} & {j}", "{i} | {j}", "{i} ^ {j}", "~{i}", "{i} & 6", "{i} | 8", "{i} << 2", "{i} >> 1",
    "{i} << ({j} & 3)", "{i} >> ({j} & 7)", "{i} << 7", "{i} >> 7", "{i} & {m}", "1 << ({i} & 5)",
    "({i} ^ ({i} >> 3)) * 5",
)  # fmt: skip
CHOICES = (
    "torch.where({m}, {a}, {b})", "torch.where({m}, {a}, 2)", "torch.where({m}, 1.5, {a})",
    "torch.where({a} > {b}, {a}, 0)", "torch.where({m}, 1, 0)", "torch.where({m}, 1.0, 0)",
    "{a}.masked_fill({m}, 3)", "{f}.masked_fill({m}, float('-inf'))", "{a}.masked_fill({m}, True)",
    "{a}.clamp(-2, 5)", "{a}.clamp(min=1)", "{a}.clamp(max=1.5)", "{a}.clamp(0.5, 2)",
    "{a}.clamp({b}, {c})", "{a}.clamp(min={b})", "{f}.clamp(float('nan'), 1)",
    "{f}.clamp(2, 1)", "torch.maximum({a}, {b})", "torch.minimum({a}, {b})",
    "torch.fmax({a}, {b})", "torch.fmin({a}, {b})", "{f}.nan_to_num()", "{a}.nan_to_num(1.0)",
    "{a}.relu()", "F.relu6({f})", "F.hardtanh({a})", "F.threshold({a}, 1, 2)",
    "torch.heaviside({f}, {f})", "torch.copysign({a}, {b})", "F.leaky_relu({f}, 0.1)",
)  # fmt: skip
ELEMENTS = (
    *(f"{{a}}.{name}()" for name in (
        *("abs", "neg", "sign", "sgn", "square", "exp", "sqrt", "tanh", "sigmoid", "floor"),
        *("ceil", "round", "trunc", "reciprocal", "rsqrt", "erf", "sin", "cos", "expm1"),
        *("atan", "positive", "log1p", "exp2", "erfc", "sinh", "asinh"),
    )),
    "{f}.frac()", "{f}.round(decimals=1)", "F.gelu({f})", "F.silu({f})", "F.softplus({f})",
    "F.elu({f})", "F.softmax({f}, -1)", "F.log_softmax({f}, 0)", "F.softmax({f}, 0, torch.float64)",
    "torch.atan2({a}, {b})", "torch.hypot({f}, {f})", "torch.xlogy({a}, {b})",
    "torch.logaddexp({f}, {f})", "torch.gcd({i}, {j})", "torch.lcm({i} % 9, {j} % 9)",
    "torch.pow({i}, 2)", "torch.pow(2, {i} & 3)", "torch.bitwise_not({m})", "{a}.logit(0.1)",
    "torch.ldexp({f}, {i} & 3)", "F.normalize({f}, dim=-1)", "F.layer_norm({f}, {f}.shape[-1:])",
)  # fmt: skip
REDUCTIONS = (
    *(f"{{a}}.{name}({dims})" for name in ("sum", "amax", "amin", "argmax", "argmin", "any", "all")
      for dims in ("", "0", "-1", "0, keepdim=True")),
    "{a}.sum((0, -1))", "{a}.sum(dtype=torch.float64)", "{a}.sum(0, dtype=torch.int32)",
    "{m}.sum(-1)", "{m}.sum(-1, keepdim=True) / {m}.size(-1)", "{f}.mean()", "{f}.mean(0)",
    "{i}.float().mean(-1, keepdim=True)", "{a}.mean(dtype=torch.float32)", "{a}.prod()",
    "{a}.prod(0)", "{a}.max()", "{a}.max(0)[0]", "{a}.max(-1, keepdim=True)[1]", "{a}.min(0)[1]",
    "{a}.cumsum(0)", "{a}.cumsum(-1)", "{i}.cumsum(-1, dtype=torch.int32)", "{a}.cumprod(0)",
    "{a}.cummax(0)[0]", "{a}.cummin(-1)[1]", "{f}.var()", "{f}.std(0)", "{f}.norm()",
    "{f}.norm(1, -1)", "{f}.logsumexp(-1)", "{f}.nansum(0)", "{a}.count_nonzero(0)",
    "{a}.sort(0)[0]", "{a}.sort(-1, stable=True)[1]", "{a}.argsort(0, stable=True)",
    "{a}.msort()", "{a}.topk(1, -1)[0]", "{a}.kthvalue(1, 0)[0]", "{a}.median(0)[0]",
    "{a}.diff(dim=-1)", "torch.var_mean({f}, 0)[1]", "{f}.aminmax()[0]", "{f}.logcumsumexp(0)",
    "torch.searchsorted({i}.flatten().sort()[0], {j})",
    "torch.bucketize({f}, self.fc.bias.detach())",
)  # fmt: skip
INDICES = (
    "{a}[{i}.long().flatten() % {a}.size(0)]", "{a}[-1 - {i}.long() % {a}.size(0)]",
    "{a}[{i}.int().flatten() % {a}.size(0)]", "{a}[:, {i}.long().flatten()[:3] % {a}.size(1)]",
    "{a}[{m}.long()]", "{a}[{a}.argmax(0) % {a}.size(0)]", "{a}[[0, -1]]", "{a}[..., [1, 0, 1]]",
    "{a}.gather(0, {i}.long() % {a}.size(0))", "{a}.gather(-1, {i}.long() % {a}.size(-1))",
    "{a}.gather(-1, {a}.argmax(-1, keepdim=True))", "{a}.gather(0, {a}.argsort(0, stable=True))",
    "{a}.index_select(0, {i}.flatten().int() % {a}.size(0))",
    "{a}.index_select(-1, {i}.flatten().long() % {a}.size(-1))",
    "{a}.take({i}.long() % {a}.numel())", "{a}.take_along_dim({i}.long() % {a}.size(0), 0)",
    "{a}.scatter(0, {i}.long() % {a}.size(0), 2)", "{a}.scatter(0, {i}.long() % {a}.size(0), {a})",
    "{a}.scatter_add(0, {i}.long() % {a}.size(0), {a})",
    "{a}.scatter_reduce(0, {i}.long() % {a}.size(0), {a}, 'amax')",
    "{a}.scatter_reduce(-1, {i}.long() % {a}.size(-1), {a}, 'sum', include_self=False)",
    "{a}.index_add(0, {i}.long().flatten()[:{a}.size(0)] % {a}.size(0), {a})",
    "{a}.index_add(0, torch.tensor([0]), {a}[:1], alpha=2)",
    "{a}.index_copy(0, torch.tensor([0]), {a}[-1:])", "{a}.index_fill(0, torch.tensor([0]), 1)",
    "{a}.index_put(({i}.long().flatten()[:1] % {a}.size(0),), {a}[:1], accumulate=True)",
    "F.one_hot({i}.long() % 5, 5)", "F.one_hot({i}.long() % 5, 5).to({f}.dtype) * 2",
    "F.embedding({i}.long() % {f}.size(0), {f}, padding_idx=0)",
    "F.embedding({i}.int() % 4, self.fc.weight, padding_idx=1)",
    "F.embedding_bag({i}.long() % 4, self.fc.weight, mode='mean')",
    "F.cross_entropy({f}, {i}.long().flatten()[:{f}.size(0)] % {f}.size(1), ignore_index=1)",
    "F.cross_entropy({f}, {i}.long()[:, 0] % {f}.size(1), reduction='none', label_smoothing=0.1)",
    "F.nll_loss({f}, {i}.long()[:, 0] % 4, self.scale.detach().to({f}.dtype), reduction='sum')",
    "F.binary_cross_entropy_with_logits({f}, ({f} > 0).to({f}.dtype))",
    "{a}.masked_scatter({m}, {a})", "{a}.tril()", "{a}.triu(1)", "{a}.diag()", "{a}.flip(0)",
    "{a}.roll(1, -1)", "{a}.repeat(2, 1)", "{a}.repeat_interleave(2, 0)", "{a}.rot90()",
    "torch.cat([{a}, {b}])", "torch.cat([{a}, {a}.bool()], -1)", "torch.stack([{a}, {b}])",
    "F.pad({a}, (1, 2), value=3)", "F.pad({f}, (1, 1), mode='replicate')", "F.pad({a}, (-1, 0))",
    "{a} @ {b}", "{a} @ {b}.t()", "{a} @ {a}.mT", "torch.einsum('...i,...i->...', {a}, {a})",
    "torch.outer({a}.flatten()[:4], {b}.flatten()[:4])",
    "F.linear({f}, self.fc.weight.to({f}.dtype))",
    "torch.zeros_like({a}, dtype=torch.int32)", "torch.full_like({a}, 3)", "{a}.new_full((2,), 5)",
    "torch.ones_like({a})", "{a}.clone()", "{a}.contiguous()", "{a}.new_zeros(3)",
    "torch.broadcast_to({a}, (2, *{a}.shape)) + {b}", "torch.tensordot({a}, {a}, 2)",
)  # fmt: skip
WRITES = (
    "{a}.add_(1)", "{a}.add_({b})", "{a} += 1", "{a} -= {b}", "{a} *= 2", "{f}.mul_(0.5)",
    "{a}.zero_()", "{a}.fill_(1)", "{a}.neg_()", "{a}.clamp_(0, 3)", "{a}.masked_fill_({m}, 1)",
    "{a}[0] = 1", "{a}[..., 1] = {a}[..., 0]", "{a}[{m}] = 2", "{a}[1:] *= 3", "{f}.copy_({b})",
    "{i}.copy_({m})", "{i} //= 2", "{i} %= 3", "{i} <<= 1", "{i} &= 5", "{m} |= True",
    "{m}.logical_not_()", "{i}.bitwise_xor_({j})", "{f}.exp_()", "{f}.sigmoid_()", "{f}.div_(3)",
    "{a}.index_add_(0, torch.tensor([0]), {a}[:1].clone())", "{a}[..., 0] += {b}",
    "{a}.scatter_(0, {i}.long() % {a}.size(0), 1)", "self.count += 1", "self.table[0] += 2",
    "self.count.copy_({m}.sum())", "self.table.bitwise_and_(7)", "{a}.index_fill_(0, C[0, 2:3], 1)",
)  # fmt: skip

_KINDS = (
    (SOURCES, 2), (VIEWS, 4), (CASTS, 5), (ARITHMETIC, 7), (COMPARISONS, 3), (BITS, 2),
    (CHOICES, 4), (ELEMENTS, 3), (REDUCTIONS, 5), (INDICES, 5), (WRITES, 3),
)  # fmt: skip


def _statement(choose: random.Random, names: dict[str, Any], new: str) -> str | None:
    """One more statement; None if no tensor fits it."""
    kind = choose.choices([each for each, _ in _KINDS], [weight for _, weight in _KINDS])[0]
    template = choose.choice(kind)
    values = {name: value for name, value in names.items() if name[0] == "v"}
    tensors = {name: each for name, each in values.items() if isinstance(each, torch.Tensor)}
    fitting = {
        **{letter: list(tensors) for letter in "abc"},
        **{letter: [n for n, t in tensors.items() if t.is_floating_point()] for letter in "fg"},
        **{letter: [n for n, t in tensors.items() if t.dtype in WHOLE] for letter in "ij"},
        "m": [n for n, t in tensors.items() if t.dtype is torch.bool],
    }
    if any(f"{{{letter}}}" in template and not fitting[letter] for letter in _LETTERS):
        return None
    # The latest are likelier, so that values go through several operators.
    chosen = {
        letter: choose.choice(some[-6:] if choose.random() < 0.6 else some)
        for letter, some in fitting.items()
        if some
    }
    line = template.format(**chosen)
    return line if kind is WRITES else f"{new} = {line}"


def _ending(
    choose: random.Random, names: dict[str, Any], lines: list[str], *, training: bool
) -> list[str]:
    """What is returned, at the end the loss."""
    new = [line.partition(" = ") for line in lines[len(INPUTS) :]]
    made = [name for name, assigned, _ in new if assigned and name in names]
    returned = [
        f"{name} | False" if names[name].dtype is torch.bool else f"{name} * 1"
        for name in made[-_RETURNED:]
    ]
    if not training:
        return [f"return {', '.join([*returned, 'v0 * 1'])},"]
    floating = [name for name in made if names[name].is_floating_point()]
    used = [choose.choice(floating) for _ in range(3)] if floating else []
    # A loss that does not become a part of the marked one is refused.
    used += [name for name, _, value in new if value.startswith(_LOSSES) and name in names]
    terms = [f"{name}.float().nan_to_num(0, 1, 1).sin().sum()" for name in used]
    total = " + ".join(["self.fc(self.scale)", *terms])
    return [
        f"loss = ({total}).square().mean()",
        "mark(loss)",
        f"return {', '.join([*returned, 'loss'])},",
    ]
