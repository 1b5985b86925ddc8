"""Random programs of the operators in torch's own database of operators, forward and backward.

Each operator is called with one of the samples that torch tests it with; in the place of the
sample's tensors come results of the operators before, in its shape and range.
"""

import dataclasses
import functools
import itertools
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensors = list[torch.Tensor]

# Samples of more elements make programs slow, and test nothing else.
_LARGEST = 2000
_SAMPLES, _SHORTEST, _LONGEST = 24, 2, 7
# What these compute is not decided by their arguments, or is no tensor of this process.
_RANDOM = ("empty", "rand", "normal", "multinomial", "bernoulli", "poisson", "dropout", "cauchy",
           "exponential", "geometric", "uniform", "rrelu", "resize")  # fmt: skip
# The shape of their results follows from values, or they are of a kind that no program holds.
_OTHER = ("lstsq", "unique", "allclose", "equal", "nonzero", "masked_select", "argwhere", "item",
          "sparse", "jiterator")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Call:
    """An operator and how it is called.

    Attributes:
        name: in torch's database.
        function: the operator.
        arguments: by position and by name, of a sample.
        sources: for each tensor of these in order, which earlier one takes its place, if any.
        ranges: of each tensor that one takes the place of, the least and the largest number.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Sequence[Any], dict[str, Any]]
    sources: tuple[int | None, ...]
    ranges: tuple[tuple[float, float], ...]

    def __call__(self, values: Sequence[torch.Tensor]) -> Any:
        """What it makes of earlier values."""
        sources, ranges = iter(self.sources), iter(self.ranges)

        def replaced(sample: torch.Tensor) -> torch.Tensor:
            source = next(sources)
            if source is None:
                return sample.clone()
            return _in_place_of(sample, values[source], *next(ranges))

        positional, named = _mapped(self.arguments, replaced)
        return self.function(*positional, **named)


@dataclasses.dataclass(frozen=True)
class Composed:
    """A random program.

    Attributes:
        calls: in order; each adds the floating ones of its results to those that follow may use.
        inputs: what the first calls may use.
    """

    calls: tuple[Call, ...]
    inputs: tuple[torch.Tensor, ...]

    @property
    def names(self) -> list[str]:
        """Of the operators."""
        return [call.name for call in self.calls]

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """The results of all operators."""
        values, results = list(inputs), []
        for call in self.calls:
            made = _tensors(call(values))
            results += made
            values += [each for each in made if _usable(each)]
        return results


@functools.cache
def operators() -> tuple[Any, ...]:
    """Torch's database, without what is random or sparse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return tuple(
        each
        for each in op_db
        if torch.float32 in each.dtypes
        and not any(part in each.name for part in (*_RANDOM, *_OTHER))
    )


def composed(seed: int) -> Composed:
    """A random program; the same for the same seed."""
    choose = random.Random(seed)
    torch.manual_seed(seed)
    inputs = [torch.randn(3, 4), torch.randn(choose.randint(1, 5), choose.randint(1, 9))]
    calls: list[Call] = []
    for _ in range(choose.randint(_SHORTEST, _LONGEST)):
        call = _chosen(choose, Composed(tuple(calls), tuple(inputs)))
        if call is not None:
            calls.append(call)
    return Composed(tuple(calls), tuple(inputs))


def _chosen(choose: random.Random, before: Composed) -> Call | None:
    """One more call, if it can be computed."""
    operator = choose.choice(operators())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = operator.sample_inputs("cpu", torch.float32, requires_grad=False)
        few = [each for each in itertools.islice(samples, _SAMPLES) if _is_small(each)]
        if not few:
            return None
        sample = choose.choice(few)
        arguments = ((sample.input, *sample.args), sample.kwargs)
        values = [*before.inputs, *filter(_usable, before(*before.inputs))]
        tensors = _tensors(arguments)
        sources = tuple(
            choose.randrange(len(values)) if _usable(each) else None for each in tensors
        )
        ranges = tuple((float(t.min()), float(t.max())) for t in tensors if _usable(t))
        call = Call(operator.name, _variant(choose, operator), arguments, sources, ranges)
        longer = Composed((*before.calls, call), before.inputs)
        return call if _has_gradients(longer) else None


def _variant(choose: random.Random, operator: Any) -> Callable[..., Any]:
    """The operator, or now and then the one that writes its result into its argument."""
    if operator.inplace_variant is not None and choose.random() < 0.15:
        return operator.inplace_variant
    return operator.op


def _has_gradients(program: Composed) -> bool:
    """Whether forward and backward can be computed, and are finite."""
    inputs = [each.clone().requires_grad_() for each in program.inputs]
    try:
        results = program(*inputs)
        squares = [(each * each).sum() for each in results if each.dtype.is_floating_point]
        if not squares:
            return False
        total = torch.stack([each.to(squares[0].dtype) for each in squares]).sum()
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return False
    return all(bool(each.isfinite().all()) for each in (total, *gradients) if each is not None)


def _is_small(sample: Any) -> bool:
    tensors = _tensors(((sample.input, *sample.args), sample.kwargs))
    return all(each.numel() <= _LARGEST for each in tensors)


def _mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The same containers with other tensors in them."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: _mapped(each, change) for name, each in value.items()}
    if type(value) in (list, tuple) or hasattr(value, "n_sequence_fields"):  # torch's named results
        items = [_mapped(each, change) for each in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _tensors(values: Any) -> Tensors:
    tensors: Tensors = []
    _mapped(values, tensors.append)
    return tensors


def _usable(value: torch.Tensor) -> bool:
    """Whether it may take the place of an argument, and another may take its place."""
    plain = value.layout is torch.strided and value.dtype is torch.float32
    return plain and 0 < value.numel() <= _LARGEST


def _in_place_of(
    sample: torch.Tensor, value: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """A tensor like a sample, of the same shape and in the same range, made of another's values."""
    count = sample.numel()
    flat = value.reshape(-1)
    if flat.numel() < count:
        flat = flat.repeat(-(-count // flat.numel()))
    return torch.sigmoid(flat[:count].reshape(sample.shape)) * (high - low) + low
