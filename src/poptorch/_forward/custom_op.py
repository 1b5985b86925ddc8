"""Custom operators: those registered by programs, and those shipped with the original PopTorch."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from abele.ops.ctc import ctc_loss
from poptorch._error import error
from poptorch._forward.running import isRunningOnIpu

#: The domain of PopART's own operators.
POPART = "ai.graphcore"

_SCALARS = (float, int, str)


@dataclasses.dataclass(frozen=True)
class _Implementation:
    forward: Callable
    backward: Callable | None
    version: int | None


_registered: dict[tuple[str, str], _Implementation] = {}


def register_custom_op(
    name: str, domain: str, domain_version: int | None = None, *, backward: Callable | None = None
) -> Callable[[Callable], Callable]:
    """Return a decorator that registers the implementation of a custom operator.

    The function takes the list of inputs and the dictionary of attributes, and returns a tensor or
    a sequence of tensors. It is written with torch operations, which become part of the program::

        @poptorch.register_custom_op("Cube", "com.acme")
        def cube(inputs, attributes):
            return [inputs[0] ** 3]

    Its gradient comes from autograd, unless ``backward`` computes it. An addition of this project:
    the original takes such operators from compiled libraries alone. An operator that is registered
    with ``torch.library``, from Python or by a library built for torch, needs no decorator.

    Args:
        name: as given to ``custom_op``.
        domain: as given to ``custom_op``.
        domain_version: the only version this computes; default any.
        backward: takes the gradients of the results, the inputs and the attributes, and returns one
            gradient (or None) per input.

    Returns:
        A decorator that registers its function, in place of an earlier one, and returns it.
    """

    def decorate(forward: Callable) -> Callable:
        _registered[domain, name] = _Implementation(forward, backward, domain_version)
        return forward

    return decorate


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: dict[str, float | int | str | list | tuple] | None = None,
) -> list[torch.Tensor]:
    """Call a custom operator of the user's program inside forward.

    It is looked up under ``register_custom_op``, then as ``torch.ops.DOMAIN.NAME`` with every dot
    of the domain replaced by an underscore; that one is called with the inputs, and with the
    attributes as keywords. A line such as ``ctypes.cdll.LoadLibrary("ops.so")`` registers it when
    the library was built for torch (``TORCH_LIBRARY``). ``FastGatherLastDim`` of domain
    ``poptorch.custom_ops`` and ``Ctc`` of ``ai.graphcore``, which the original ships, are
    registered.

    Differs from the original: a library built for the original's devices cannot be used; rebuild
    it for torch, or write its operators with torch operations and ``register_custom_op``.

    Args:
        inputs: the operator's tensors.
        name: the operator.
        domain: the set it belongs to, ``com.acme``.
        domain_version: compared if the operator was registered for one version.
        example_outputs: one tensor per result, of its shape and type; values are not used.
        attributes: constants by name: numbers, texts, or lists or tuples of one kind of them.

    Returns:
        As many tensors as ``example_outputs``. Outside of a wrapper they are zeros.

    Raises:
        ValueError: an attribute has an illegal name or value.
        poptorch.Error: there is no such operator, or its results are unlike the examples.
    """
    attributes = attributes or {}
    _check_attributes(attributes)
    if not isRunningOnIpu():
        return [torch.zeros_like(example) for example in example_outputs]
    results = _implementation(name, domain, domain_version)(list(inputs), dict(attributes))
    outputs = list(results) if isinstance(results, list | tuple) else [results]
    if domain == POPART:  # a program may leave out the last results
        outputs = outputs[: len(example_outputs)]
    _check_results(f"{domain}.{name}", outputs, example_outputs)
    return outputs


def _check_attributes(attributes: dict) -> None:
    for key, value in attributes.items():
        if not isinstance(key, str):
            raise ValueError(f"The keys of attributes must be strings, found {key!r}.")
        values = value if isinstance(value, list | tuple) else (value,)
        for each in values:
            if not isinstance(each, _SCALARS):
                raise ValueError(
                    f"Attribute values are floats, ints, strings, or lists or tuples of one of "
                    f"them; {key!r} holds {each!r} of type {type(each).__name__}."
                )
        kinds = {type(each).__name__ for each in values}
        if len(kinds) > 1:
            raise ValueError(
                f"The types in a list or tuple must all be the same; {key!r} mixes {sorted(kinds)}."
            )
        for text in (key, *(each for each in values if isinstance(each, str))):
            if not text.isascii():
                raise ValueError(f"{text!r} in attributes has non-ASCII characters. Use ASCII.")


def _implementation(name: str, domain: str, version: int) -> Callable[[list, dict], Any]:
    entry = _registered.get((domain, name))
    if entry is not None and entry.version in (None, version):
        return _with_backward(entry.forward, entry.backward) if entry.backward else entry.forward
    namespace = re.sub(r"\W", "_", domain)
    operator = getattr(getattr(torch.ops, namespace), name, None)
    if operator is None:
        names = [f"{each}.{op} version {i.version}" for (each, op), i in _registered.items()]
        raise error(
            f"There is no custom operator {name!r} of domain {domain!r}, version {version}; "
            f"registered are {names}. Write it with torch operations and decorate it by "
            f'@poptorch.register_custom_op("{name}", "{domain}"), or register '
            f"torch.ops.{namespace}.{name} with torch.library. A compiled library made for the "
            "original's devices cannot run here."
        )
    return lambda inputs, attributes: _called(operator, inputs, attributes)


def _called(operator: Any, inputs: list, attributes: dict) -> Any:
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()}
    try:
        return operator(*inputs, **lists)
    except (TypeError, RuntimeError) as failure:
        raise error(
            f"{operator} cannot be called with {len(inputs)} tensors and the attributes "
            f"{attributes}: {failure}"
        ) from failure


def _with_backward(forward: Callable, backward: Callable) -> Callable[[list, dict], Any]:
    def call(inputs: list[torch.Tensor], attributes: dict) -> Any:
        class Operator(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *tensors: torch.Tensor) -> Any:
                ctx.save_for_backward(*tensors)
                results = forward(list(tensors), attributes)
                return tuple(results) if isinstance(results, list | tuple) else (results,)

            @staticmethod
            def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
                grads = backward(list(gradients), list(ctx.saved_tensors), attributes)
                return tuple(grads) if isinstance(grads, list | tuple) else (grads,)

        return Operator.apply(*inputs)

    return call


def _check_results(name: str, results: list, examples: Sequence[torch.Tensor]) -> None:
    kinds = [_kind(each) for each in results]
    expected = [_kind(each) for each in examples]
    if kinds != expected:
        raise error(
            f"Custom operator {name} returns {kinds}, the example outputs promise {expected}. "
            "Give examples of the shapes and types that it returns."
        )


def _kind(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


#: The domain of the original's custom operators, such as ``FastGatherLastDim``.
DOMAIN = "poptorch.custom_ops"


@register_custom_op("FastGatherLastDim", DOMAIN)
def fast_gather_last_dim(inputs: list[torch.Tensor], attributes: dict) -> list[torch.Tensor]:
    """Gather values along the last dimension, as ``torch.gather(values, -1, indices)``.

    Args:
        inputs: values ``[..., n]``, and integer indices ``[..., k]`` below n.
        attributes: ``axis``, if given, is the last one.

    Returns:
        One tensor ``[..., k]`` of the values' type.

    Raises:
        poptorch.Error: another axis, or not two inputs.
    """
    if len(inputs) != 2:
        raise error(f"FastGatherLastDim takes values and indices, found {len(inputs)} inputs.")
    values, indices = inputs
    axis = attributes.get("axis", -1)
    if axis not in (-1, values.dim() - 1):
        raise error(
            f"FastGatherLastDim gathers along the last dimension, found axis={axis}. For another "
            "one call torch.gather."
        )
    return [torch.gather(values, -1, indices.long())]


# As the attributes of PopART's operators name them.
_REDUCTIONS = {"Mean": "mean", "Sum": "sum", "NoReduction": "none"}
# Numbers of ONNX; 0 is undefined.
_DATA_TYPES = {0: None, 1: torch.float32, 10: torch.float16}
_CTC = "reduction, blank, outDataType and zeroInfinity"
_CTC_VALUES = {"reduction": _REDUCTIONS, "outDataType": _DATA_TYPES, "zeroInfinity": (0,)}


@register_custom_op("Ctc", POPART)
def ctc(inputs: list[torch.Tensor], attributes: dict) -> list[torch.Tensor]:
    """Compute PopART's CTC loss, as ``torch.nn.functional.ctc_loss`` does.

    Args:
        inputs: log probabilities ``[time, batch, classes]``, targets ``[batch, longest]``, lengths
            of the inputs and of the targets.
        attributes: ``reduction`` is ``"Mean"``, ``"Sum"`` or ``"NoReduction"``; ``blank`` is the
            class that separates labels, 0 by default; ``outDataType`` is a number of ONNX.

    Returns:
        The loss, and the gradient of each sample's loss with respect to the log probabilities.

    Raises:
        poptorch.Error: not four inputs, or another attribute or value of one.
    """
    if len(inputs) != 4:
        raise error(
            "Ctc takes log probabilities, targets, input lengths and target lengths, found "
            f"{len(inputs)} inputs."
        )
    settings = {"reduction": "Mean", "blank": 0, "outDataType": 0, "zeroInfinity": 0} | attributes
    log_probs, targets, *lengths = inputs
    for name, value in settings.items():
        known: Any = _CTC_VALUES.get(name, range(log_probs.shape[-1]) if name == "blank" else ())
        if value not in known:
            raise error(f"Ctc knows {name} {[*known]}, found {value!r}. Its attributes are {_CTC}.")
    reduction = _REDUCTIONS[settings["reduction"]]
    others = targets.long(), lengths[0], lengths[1], settings["blank"]
    loss = ctc_loss(log_probs, *others, reduction)
    with torch.enable_grad():
        leaf = log_probs.detach().requires_grad_()
        each = ctc_loss(leaf, *others, "none")
        (gradient,) = torch.autograd.grad(each.sum(), leaf)
    dtype = _DATA_TYPES[settings["outDataType"]] or log_probs.dtype
    return [loss.to(dtype), gradient.to(dtype)]
