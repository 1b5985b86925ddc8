"""Random small networks of usual layers, each with a loss, a batch and an update rule."""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

Shape = tuple[int, ...]
Layer = Callable[[torch.Tensor], torch.Tensor]
# A larger tensor is made smaller before anything else happens to it.
_LARGEST = 3000


@dataclasses.dataclass
class Network:
    """A network, and what it is trained with.

    Attributes:
        module: returns its scores and the loss.
        batch: arguments of its forward.
        rule: kind of the update rule.
        layers: what it consists of, for messages.
    """

    module: nn.Module
    batch: list[torch.Tensor]
    rule: str
    layers: list[str]


class _Stack(nn.Module):
    def __init__(self, steps: list[Layer], loss: Callable[..., torch.Tensor]):
        super().__init__()
        self.parts = nn.ModuleList([each for each in steps if isinstance(each, nn.Module)])
        self._steps, self._loss = steps, loss

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> Any:
        for step in self._steps:
            x = step(x)
        return x, self._loss(x, target)


def network(seed: int) -> Network:
    """Return the network of a seed, which chooses everything."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    kind = choose.choice(["vectors", "sequence", "images", "tokens"])
    x, steps, names = _FIRST[kind](choose)
    with torch.no_grad():
        shape = tuple(_through(steps, x).shape)
        for _ in range(choose.randint(1, 7)):
            name, step = _chosen(choose, shape)
            y = step(_through(steps, x))
            if not y.numel() or not y.isfinite().all():
                continue
            steps.append(step)
            names.append(name)
            shape = tuple(y.shape)
        target, last, loss = _ending(choose, shape)
    steps += last
    module = _Stack(steps, loss).train()
    return Network(module, [x, target], choose.choice(["sgd", "adam"]), names)


def _through(steps: list[Layer], x: torch.Tensor) -> torch.Tensor:
    for step in steps:
        x = step(x)
    return x


def _chosen(choose: random.Random, shape: Shape) -> tuple[str, Layer]:
    if len(shape) > 1 and torch.Size(shape).numel() > _LARGEST:
        size = choose.randint(3, 9)
        return "smaller linear", nn.Linear(shape[-1], size)
    make = choose.choice([*_ANY, *_BY_RANK.get(len(shape), [])])
    return make.__name__.strip("_"), make(choose, shape)


# -- what a network begins with --------------------------------------------------------------------


def _vectors(choose: random.Random) -> tuple[torch.Tensor, list[Layer], list[str]]:
    return torch.randn(choose.randint(1, 9), choose.randint(1, 17)), [], ["vectors"]


def _sequence(choose: random.Random) -> tuple[torch.Tensor, list[Layer], list[str]]:
    sizes = choose.randint(1, 5), choose.randint(1, 7), choose.randint(1, 12)
    return torch.randn(sizes), [], ["sequence"]


def _images(choose: random.Random) -> tuple[torch.Tensor, list[Layer], list[str]]:
    sizes = choose.randint(1, 4), choose.randint(1, 4), choose.randint(3, 11), choose.randint(3, 11)
    return torch.randn(sizes), [], ["images"]


def _tokens(choose: random.Random) -> tuple[torch.Tensor, list[Layer], list[str]]:
    count, width = choose.randint(2, 20), choose.randint(1, 12)
    x = torch.randint(0, count, (choose.randint(1, 5), choose.randint(1, 7)))
    padding = choose.choice([None, None, 0])
    return x, [nn.Embedding(count, width, padding_idx=padding)], ["tokens"]


_FIRST = {"vectors": _vectors, "sequence": _sequence, "images": _images, "tokens": _tokens}

# -- layers of tensors of any rank -----------------------------------------------------------------


def _linear(choose: random.Random, shape: Shape) -> Layer:
    return nn.Linear(shape[-1], choose.randint(1, 20), bias=choose.random() < 0.7)


def _activation(choose: random.Random, shape: Shape) -> Layer:
    del shape
    return choose.choice(
        [
            *(torch.tanh, torch.sigmoid, F.relu, F.silu, F.gelu, torch.sin, F.softplus, F.mish),
            *(F.elu, F.leaky_relu, F.hardtanh, F.hardswish, F.relu6, F.logsigmoid),
            lambda x: F.gelu(x, approximate="tanh"),
            lambda x: x.clamp(-0.5, 0.75),
            lambda x: x.clamp(min=-0.5),
            lambda x: (x * x + 1).sqrt(),
            lambda x: (x.abs() + 0.5).log(),
            lambda x: 1 / (1 + x.exp()),
            lambda x: torch.where(x > 0.1, x, x * 0.5),
            lambda x: x.masked_fill(x.detach() < -0.5, 0.25),
            lambda x: x.pow(3) * 0.1,
            lambda x: torch.lerp(x, torch.ones(()), 0.3),
        ]
    )


def _dropout(choose: random.Random, shape: Shape) -> Layer:
    del choose, shape
    return nn.Dropout(0.0)


def _softmax(choose: random.Random, shape: Shape) -> Layer:
    dim, log = choose.randrange(len(shape)), choose.random() < 0.5
    return (lambda x: F.log_softmax(x, dim)) if log else (lambda x: F.softmax(x, dim))


def _layer_norm(choose: random.Random, shape: Shape) -> Layer:
    last = shape[choose.randint(1, len(shape) - 1) :] if len(shape) > 1 else shape
    return nn.LayerNorm(
        list(last), elementwise_affine=choose.random() < 0.7, bias=choose.random() < 0.7
    )


def _residual(choose: random.Random, shape: Shape) -> Layer:
    del choose
    return _Residual(nn.Linear(shape[-1], shape[-1]))


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def _scaled(choose: random.Random, shape: Shape) -> Layer:
    kept = [n if choose.random() < 0.5 else 1 for n in shape]
    return _Scaled(kept[choose.randrange(len(kept)) :])


class _Scaled(nn.Module):
    def __init__(self, shape: list[int]):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(shape) + 0.5)
        self.register_buffer("seen", torch.zeros(shape))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.mul_(0.5).add_(self.scale.detach())
        return x * self.scale + self.seen


def _cut(choose: random.Random, shape: Shape) -> Layer:
    dim = choose.randrange(1, len(shape)) if len(shape) > 1 else 0
    parts = choose.randint(2, 3)

    def mixed(x: torch.Tensor) -> torch.Tensor:
        pieces = list(x.chunk(parts, dim))
        return torch.cat([*pieces[::-1], pieces[0].tanh()], dim)

    def sliced(x: torch.Tensor) -> torch.Tensor:
        return x.narrow(dim, shape[dim] // 2, shape[dim] - shape[dim] // 2) * 2

    def stepped(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, dim)[::2].transpose(0, dim).exp() if dim else x * 2

    return choose.choice([mixed, sliced, stepped])


def _stacked(choose: random.Random, shape: Shape) -> Layer:
    dim = choose.randrange(len(shape) + 1)
    return lambda x: torch.stack([x, x.tanh(), x * 0.5], dim).mean(dim)


def _transposed(choose: random.Random, shape: Shape) -> Layer:
    if len(shape) < 3:
        return lambda x: x + 1
    a, b = choose.sample(range(1, len(shape)), 2)
    copied = choose.random() < 0.3
    return lambda x: x.transpose(a, b).contiguous() if copied else x.transpose(a, b)


def _normalized(choose: random.Random, shape: Shape) -> Layer:
    dim, keep = choose.randrange(len(shape)), choose.choice([True, False])
    functions: list[Layer] = [
        lambda x: x - x.mean(dim, keepdim=True),
        lambda x: x / (x.pow(2).sum(dim, keepdim=True) + 1).sqrt(),
        lambda x: x * x.mean(),
        lambda x: x + x.var(dim, keepdim=True, unbiased=False),
        lambda x: x - x.amax(dim, keepdim=True),
        lambda x: F.normalize(x, dim=dim),
    ]
    del keep
    return choose.choice(functions)


def _flattened(choose: random.Random, shape: Shape) -> Layer:
    if len(shape) < 3:
        return F.relu
    first = choose.randint(1, len(shape) - 2)
    return lambda x: x.flatten(first)


_ANY = [
    *(_linear, _linear, _activation, _activation, _activation, _dropout, _softmax, _layer_norm),
    *(_residual, _scaled, _cut, _stacked, _transposed, _normalized, _flattened),
]

# -- layers of sequences and of images -------------------------------------------------------------


class _Cell(nn.Module):
    """A recurrent layer; returns the states of all steps."""

    def __init__(self, kind: Any, width: int, size: int):
        super().__init__()
        self.inner = kind(width, size, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0]


def _recurrent(choose: random.Random, shape: Shape) -> Layer:
    return _Cell(choose.choice([nn.LSTM, nn.GRU, nn.RNN]), shape[-1], choose.randint(1, 7))


def _attention(choose: random.Random, shape: Shape) -> Layer:
    causal = choose.random() < 0.5
    heads = next(n for n in (4, 3, 2, 1) if shape[-1] % n == 0)

    def attend(x: torch.Tensor) -> torch.Tensor:
        split = x.unflatten(-1, (heads, -1)).transpose(1, 2)
        y = F.scaled_dot_product_attention(split, split * 0.5, split.tanh(), is_causal=causal)
        return y.transpose(1, 2).flatten(2)

    return attend


def _products(choose: random.Random, shape: Shape) -> Layer:
    del shape
    return choose.choice(
        [
            lambda x: torch.bmm(x, x.transpose(1, 2)) * 0.3,
            lambda x: torch.bmm(x.transpose(1, 2), x).tanh(),
            lambda x: torch.einsum("bij,bkj->bik", x, x.tanh()),
        ]
    )


def _last(choose: random.Random, shape: Shape) -> Layer:
    index = choose.choice([0, -1, shape[1] // 2])
    return lambda x: x[:, index]


def _convolution(choose: random.Random, shape: Shape) -> Layer:
    height, width = (choose.randint(1, min(4, n)) for n in shape[2:])
    groups = choose.choice([1, 1, 1, shape[1]])
    return nn.Conv2d(
        shape[1],
        groups * choose.randint(1, 5 if groups == 1 else 2),
        (height, width),
        stride=choose.choice([1, 1, 2]),
        padding=choose.randint(0, 2),
        bias=choose.random() < 0.7,
        groups=groups,
    )


def _upsampling(choose: random.Random, shape: Shape) -> Layer:
    if choose.random() < 0.5:
        return nn.ConvTranspose2d(shape[1], choose.randint(1, 4), 2, 2)
    return nn.Upsample(scale_factor=2, mode=choose.choice(["nearest", "bilinear"]))


def _pool(choose: random.Random, shape: Shape) -> Layer:
    size = choose.randint(1, min(3, *shape[2:]))
    kind = choose.choice([nn.MaxPool2d, nn.MaxPool2d, nn.AvgPool2d])
    options = {"ceil_mode": choose.random() < 0.3, "padding": choose.randint(0, size // 2)}
    pools: list[Layer] = [
        kind(size, **options),
        kind(size, stride=choose.randint(1, 2), **options),
        nn.AdaptiveAvgPool2d(choose.randint(1, 2)),
    ]
    return choose.choice(pools)


def _image_norm(choose: random.Random, shape: Shape) -> Layer:
    if torch.Size(shape).numel() == shape[1]:
        return torch.tanh
    groups = choose.choice([n for n in (1, 2, 3, 4) if shape[1] % n == 0])
    if torch.Size(shape[1:]).numel() // groups == 1:
        return torch.tanh
    affine = choose.random() < 0.8
    return choose.choice(
        [nn.BatchNorm2d(shape[1], affine=affine), nn.GroupNorm(groups, shape[1], affine=affine)]
    )


_BY_RANK = {
    3: [_recurrent, _recurrent, _attention, _attention, _products, _products, _last],
    4: [*(_convolution,) * 5, *(_pool,) * 3, *(_image_norm,) * 3, _upsampling],
}

# -- losses ----------------------------------------------------------------------------------------


def _ending(
    choose: random.Random, shape: Shape
) -> tuple[torch.Tensor, list[Layer], Callable[..., torch.Tensor]]:
    """A target, layers that come last, and the loss."""
    reduction = choose.choice(["mean", "mean", "sum"])
    kind = choose.choice(["classes", "classes", "log", "squares", "absolute", "binary", "smooth"])
    if kind in ("classes", "log") and len(shape) > 1:
        target = torch.randint(0, shape[1], (shape[0], *shape[2:]))
        if choose.random() < 0.3:
            target.flatten()[0] = -100
        if kind == "log":
            last: list[Layer] = [lambda x: F.log_softmax(x, 1)]
            return target, last, lambda x, y: F.nll_loss(x, y, reduction=reduction)
        return target, [], lambda x, y: F.cross_entropy(x, y, reduction=reduction)
    if kind == "binary":
        target = torch.randint(0, 2, shape).float()
        return (
            target,
            [],
            lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction=reduction),
        )
    function = {"absolute": F.l1_loss, "smooth": F.smooth_l1_loss}.get(kind, F.mse_loss)
    return torch.randn(shape), [], lambda x, y: function(x, y, reduction=reduction)
