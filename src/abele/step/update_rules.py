"""Update rules of optimizers as tensor operations.

Sorted in order of increasing complexity. Hyper-parameters are Python floats (constants of the
program) or 0-d float64 tensors (slots that may change between calls); each rule computes the same
bits either way and the same bits as ``torch.optim`` with default settings. No rule reads a value,
so no rule makes the program wait for the host.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from abele import _torch
from abele._torch.copies import copied_node
from abele.program import has_tag
from abele.step.loss_scaling import AutomaticScaling
from abele.step.reduction import Write, write_nearest

Number = float | torch.Tensor
State = Mapping[str, torch.Tensor]
Values = Mapping[str, float]
Hyper = Mapping[str, Number]
#: Names of 0-d optimizer state.
SCALARS = frozenset({"step", "mu_product", "eta", "mu"})


@dataclasses.dataclass(frozen=True)
class Rule:
    """The update rule of an optimizer, for one parameter and its state.

    Attributes:
        state: returns the initial fill value of each state tensor.
        update: applies one gradient in place.
    """

    state: Callable[[Values], dict[str, float]]
    update: Callable[[torch.Tensor, torch.Tensor, State, Hyper], None]

    def initial(self, param: torch.Tensor, values: Values) -> dict[str, torch.Tensor]:
        """Return fresh optimizer state of one parameter."""
        return {key: _filled(param, key, value) for key, value in self.state(values).items()}


def _filled(param: torch.Tensor, key: str, value: float) -> torch.Tensor:
    if key not in SCALARS:
        return torch.full_like(param, value)
    # A program cannot read a count, so it has to be a tensor. Other numbers are rounded at each
    # update, as torch keeps them.
    dtype = torch.float64 if key == "step" else torch.float32
    return torch.full((), value, dtype=dtype, device=param.device)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """A parameter group: parameters that share hyper-parameters.

    Attributes:
        params: names of the parameters, as in ``named_parameters``.
        values: hyper-parameters by name (``lr``, ``momentum``, ``beta1``, ...).
        variable: hyper-parameters that may change without another compilation.
    """

    params: tuple[str, ...]
    values: Mapping[str, float]
    variable: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """An optimizer as data: update rule, parameter groups, loss scale and clipping.

    Attributes:
        kind: a key of ``RULES``.
        groups: parameter groups, disjoint.
        loss_scaling: the loss is multiplied by this before backward and gradients divided after.
        loss_scaling_variable: the scale is a slot instead of a constant.
        automatic_scaling: the scale adapts on the device; requires a variable scale.
        max_grad_norm: global norm to which gradients are clipped; infinity leaves them alone.
        accumulator_dtype: element type of gradient accumulators.
        state_dtypes: element type of state tensors that differ from float32.
    """

    kind: str
    groups: tuple[Group, ...]
    loss_scaling: float = 1.0
    loss_scaling_variable: bool = False
    automatic_scaling: AutomaticScaling | None = None
    max_grad_norm: float = math.inf
    accumulator_dtype: torch.dtype = torch.float32
    state_dtypes: Mapping[str, torch.dtype] = dataclasses.field(
        default_factory=dict[str, torch.dtype]
    )

    def hyper(self) -> dict[str, float]:
        """Return the names and current values of variable hyper-parameters and the loss scale."""
        values = {
            f"group{index}.{name}": float(group.values[name])
            for index, group in enumerate(self.groups)
            for name in sorted(group.variable)
        }
        if self.loss_scaling_variable:
            values["loss_scaling"] = float(self.loss_scaling)
        return values

    def initial_state(self, params: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return fresh optimizer state of all grouped parameters, by slot name."""
        state: dict[str, torch.Tensor] = {}
        for group in self.groups:
            for name in group.params:
                # State of half parameters is float32 unless asked otherwise.
                fresh = RULES[self.kind].initial(_widened(params[name]), group.values)
                state |= {
                    f"{name}.{key}": value.to(self.state_dtypes.get(key, value.dtype))
                    for key, value in fresh.items()
                }
        return state


# -- arithmetic: the same bits for a number that is a constant and one in a slot -------------------


def axpy(y: torch.Tensor, x: torch.Tensor, a: Number, sign: int = 1) -> torch.Tensor:
    """Compute ``y + sign*a*x``, rounded once like ``torch.add(y, x, alpha=...)``."""
    if isinstance(a, torch.Tensor):
        return torch.addcmul(y, x, a.to(y.dtype), value=sign)
    return torch.add(y, x, alpha=sign * a)


def lerp(start: torch.Tensor, end: torch.Tensor, weight: Number) -> torch.Tensor:
    """Compute ``start + weight * (end - start)`` as ``torch.lerp`` does."""
    if isinstance(weight, torch.Tensor):
        weight = weight.to(start.dtype)
    return torch.lerp(start, end, weight)


def mean_of_squares(mean: torch.Tensor, value: torch.Tensor, decay: Number) -> torch.Tensor:
    """Compute ``decay * mean + (1 - decay) * value**2``."""
    return (mean * decay).addcmul(value * (1 - decay), value)


def filled_where(mask: torch.Tensor, value: torch.Tensor, number: Number) -> torch.Tensor:
    """Replace elements by ``number`` where ``mask`` is true."""
    if isinstance(number, torch.Tensor):
        return torch.where(mask, number.to(value.dtype), value)
    return value.masked_fill(mask, number)


def decayed(param: torch.Tensor, grad: torch.Tensor, h: Hyper) -> torch.Tensor:
    """Add weight decay to the gradient, or decay ``param`` if ``decoupled``."""
    decay = h["weight_decay"]
    if is_zero(decay):
        return grad
    if not h.get("decoupled"):
        return axpy(grad, param, decay)
    param.copy_(param * (1 - h["lr"] * decay))
    return grad


def is_zero(value: Number) -> bool:
    """Return whether a number is a constant zero, whose operations can be left out."""
    return not isinstance(value, torch.Tensor) and value == 0


def quotient(value: Number, divisor: Number) -> Number:
    """Compute ``value / divisor``; 0 where that is 0 / 0."""
    if isinstance(divisor, torch.Tensor):
        return value / torch.where(divisor == 0, 1.0, divisor)
    return value / divisor if divisor else value


def sqrt(value: Number) -> Number:
    """Return the square root of a number or 0-d tensor."""
    return value.sqrt() if isinstance(value, torch.Tensor) else math.sqrt(value)


def counted(state: State) -> torch.Tensor:
    """Increment the step count in optimizer state; return it as 0-d float64, from 1."""
    state["step"].copy_(state["step"] + 1)
    return state["step"].double()  # torch's objects on the host count in float32


_MOMENTS = {"step": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}


def moments(grad: torch.Tensor, state: State, h: Hyper) -> torch.Tensor:
    """Update the first and second moments by a gradient; return the step count."""
    first, second = state["exp_avg"], state["exp_avg_sq"]
    first.copy_(lerp(first, grad, 1 - h["beta1"]))
    second.copy_(mean_of_squares(second, grad, h["beta2"]))
    return counted(state)


# -- rules -----------------------------------------------------------------------------------------


def _norm(value: torch.Tensor) -> torch.Tensor:
    linalg: Any = torch.linalg
    return linalg.vector_norm(value)


def _sgd(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Stochastic gradient descent with momentum.

    Differs from torch in two ways: dampening acts on the first step too, and without momentum a
    ``velocity_scaling`` multiplies the gradient before the rate does, with a rounding between.
    """
    grad, rate = decayed(param, grad, h), h["lr"]
    if "momentum_buffer" in state:
        velocity = state["momentum_buffer"]
        velocity.copy_(axpy(velocity * h["momentum"], grad, 1 - h["dampening"]))
        grad = axpy(grad, velocity, h["momentum"]) if h["nesterov"] else velocity
    elif "velocity_scaling" in h:
        grad, rate = grad * h["velocity_scaling"], quotient(rate, h["velocity_scaling"])
    param.copy_(axpy(param, grad, rate, sign=-1))


def _rmsprop_state(values: Values) -> dict[str, float]:
    state = {"step": 0.0, "square_avg": 1.0 if values["tf_variant"] else 0.0}
    if values["momentum"] != 0:
        state["momentum_buffer"] = 0.0
    if values["centered"]:
        state["grad_avg"] = 0.0
    return state


def _rmsprop(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper):
    """RMSprop (Hinton, lecture 6e); ``tf_variant`` puts eps inside the root."""
    counted(state)  # not computed with, but torch's objects have the count
    grad = decayed(param, grad, h)
    square = state["square_avg"]
    square.copy_(mean_of_squares(square, grad, h["alpha"]))
    variance = square
    if "grad_avg" in state:
        mean = state["grad_avg"]
        mean.copy_(lerp(mean, grad, 1 - h["alpha"]))
        variance = square.addcmul(mean, mean, value=-1)
    root = (variance + h["eps"]).sqrt() if h["tf_variant"] else variance.sqrt() + h["eps"]
    if "momentum_buffer" in state:
        velocity = state["momentum_buffer"]
        velocity.copy_((velocity * h["momentum"]).addcdiv(grad, root))
        param.copy_(axpy(param, velocity, h["lr"], sign=-1))
    else:
        param.copy_(param - (grad * h["lr"]) / root)


def _adam_state(values: Values) -> dict[str, float]:
    return {**_MOMENTS, "max_exp_avg_sq": 0.0} if values.get("amsgrad") else _MOMENTS


def _adam(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adam (arXiv 1412.6980); optionally with AdamW's decoupled decay (arXiv 1711.05101).

    Without ``bias_correction`` in ``h`` the moments are corrected. With ``amsgrad`` the second ones
    are the largest so far.
    """
    grad = decayed(param, grad, h)
    step = moments(grad, state, h)
    first, second = state["exp_avg"], state["exp_avg_sq"]
    if "max_exp_avg_sq" in state:
        largest = state["max_exp_avg_sq"]
        largest.copy_(torch.maximum(largest, second))
        second = largest
    if not h.get("bias_correction", True):
        param.copy_(param - (first * h["lr"]) / (second.sqrt() + h["eps"]))
        return
    correction1 = 1 - h["beta1"] ** step
    correction2 = 1 - h["beta2"] ** step
    denominator = second.sqrt() / sqrt(correction2) + h["eps"]
    param.copy_(param - (first * (h["lr"] / correction1)) / denominator)


def _lamb(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """LAMB (arXiv 1904.00962), one trust ratio per parameter tensor."""
    step = moments(grad, state, h)
    first, second = state["exp_avg"], state["exp_avg_sq"]
    if h["bias_correction"]:
        first = first / (1 - h["beta1"] ** step)
        second = second / (1 - h["beta2"] ** step)
    update = axpy(first / (second.sqrt() + h["eps"]), param, h["weight_decay"])
    largest = h["max_weight_norm"]
    if isinstance(largest, torch.Tensor):
        largest = largest.to(param.dtype)
    weight_norm, update_norm = _norm(param), _norm(update)
    # A limit of 0 keeps the weights where they are: it makes no weight zero.
    usable = (weight_norm > 0) & (update_norm > 0)
    weight_norm = weight_norm.clamp(max=largest)
    # The unused quotient of a zero norm would be a division by zero, which can be trapped.
    ones = torch.ones_like(weight_norm)
    ratio = torch.where(usable, weight_norm / torch.where(usable, update_norm, ones), ones)
    # In float64, where a constant and a slot give the same product.
    param.copy_(param - update * (ratio.double() * h["lr"]))


def _adadelta(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adadelta (arXiv 1212.5701)."""
    counted(state)
    grad = decayed(param, grad, h)
    square, deltas = state["square_avg"], state["acc_delta"]
    square.copy_(mean_of_squares(square, grad, h["rho"]))
    delta = (deltas + h["eps"]).sqrt() / (square + h["eps"]).sqrt() * grad
    deltas.copy_(mean_of_squares(deltas, delta, h["rho"]))
    param.copy_(axpy(param, delta, h["lr"], sign=-1))


def _adagrad(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adagrad (Duchi et al., JMLR 12, 2011)."""
    step = counted(state)
    grad = decayed(param, grad, h)
    rate = h["lr"]
    if not is_zero(h["lr_decay"]):
        rate = rate / (1 + (step - 1) * h["lr_decay"])
    total = state["sum"]
    total.copy_(total.addcmul(grad, grad))
    param.copy_(param - (grad * rate) / (total.sqrt() + h["eps"]))


def _adamax(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adam with the largest gradient in place of the mean square (arXiv 1412.6980, section 7)."""
    step = counted(state)
    grad = decayed(param, grad, h)
    first, largest = state["exp_avg"], state["exp_inf"]
    first.copy_(lerp(first, grad, 1 - h["beta1"]))
    largest.copy_(torch.maximum(largest * h["beta2"], grad.abs() + h["eps"]))
    param.copy_(param - (first * (h["lr"] / (1 - h["beta1"] ** step))) / largest)


def _nadam(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adam with Nesterov's momentum (Dozat, ICLR workshop 2016), which grows with the steps."""
    grad = decayed(param, grad, h)
    step = moments(grad, state, h)
    first, second, product = state["exp_avg"], state["exp_avg_sq"], state["mu_product"]
    mu = _nadam_momentum(step, h)
    mu_next = _nadam_momentum(step + 1, h)
    product.copy_(product * mu.to(product.dtype))
    so_far = product.double()
    root = (second / (1 - h["beta2"] ** step)).sqrt() + h["eps"]
    param.copy_(param + (grad * (-h["lr"] * (1 - mu) / (1 - so_far))) / root)
    param.copy_(param + (first * (-h["lr"] * mu_next / (1 - so_far * mu_next))) / root)


def _nadam_momentum(step: torch.Tensor, h: Hyper) -> torch.Tensor:
    return h["beta1"] * (1 - 0.5 * (0.96 ** (step * h["momentum_decay"])))


def _radam(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Adam that scales by the second moment once its variance is known (arXiv 1908.03265)."""
    grad = decayed(param, grad, h)
    step = moments(grad, state, h)
    first, second = state["exp_avg"], state["exp_avg_sq"]
    update = first / (1 - h["beta1"] ** step) * h["lr"]
    longest = 2 / (1 - h["beta2"]) - 1
    if isinstance(longest, torch.Tensor) or longest > 5:
        update = _rectified(update, second, step, longest, h)
    param.copy_(param - update)


def _rectified(
    update: torch.Tensor, second: torch.Tensor, step: torch.Tensor, longest: Number, h: Hyper
) -> torch.Tensor:
    correction = 1 - h["beta2"] ** step
    length = longest - 2 * step * (h["beta2"] ** step) / correction
    # What is not chosen has to be a number too: an infinity can be trapped.
    usable = length.clamp(min=5)
    excess = (usable - 4) * (usable - 2) * longest
    factor = sqrt(excess / ((longest - 4) * (longest - 2) * usable))
    adaptive = (second.sqrt() + h["eps"]).reciprocal() * sqrt(correction)
    return torch.where(length > 5, update * adaptive * factor, update)


def _asgd(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Averaged gradient descent (Polyak and Juditsky, 1992); the mean is in ``ax``."""
    step = counted(state)
    grad = decayed(param, grad, h)
    eta, mu, mean = state["eta"], state["mu"], state["ax"]
    rate = eta.double()
    param.copy_(axpy(param * (1 - h["lambd"] * rate), grad, rate, sign=-1))
    mean.copy_(torch.where(mu == 1, param, mean + (param - mean) * mu))
    rate = h["lr"] / (1 + h["lambd"] * h["lr"] * step) ** h["alpha"]
    eta.copy_(rate.to(eta.dtype))
    mu.copy_((step - h["t0"]).clamp(min=1).reciprocal().to(mu.dtype))


def _rprop(param: torch.Tensor, grad: torch.Tensor, state: State, h: Hyper) -> None:
    """Resilient backpropagation (Riedmiller and Braun, 1993); ``lr`` is the initial step size."""
    counted(state)
    before, size = state["prev"], state["step_size"]
    product = grad * before
    shrinks = product < 0
    factor = filled_where(product > 0, torch.ones_like(size), h["etaplus"])
    factor = filled_where(shrinks, factor, h["etaminus"])
    size.copy_((size * factor).clamp(min=h["step_size_min"]).clamp(max=h["step_size_max"]))
    grad = grad.masked_fill(shrinks, 0.0)
    param.copy_(param.addcmul(grad.sign(), size, value=-1))
    before.copy_(grad)


#: Rules beyond those of the front-ends' originals, in the order of operations of ``torch.optim``.
FURTHER_RULES: dict[str, Rule] = {
    "adadelta": Rule(lambda h: {"step": 0, "square_avg": 0, "acc_delta": 0}, _adadelta),
    "adagrad": Rule(lambda h: {"step": 0, "sum": h["initial_accumulator_value"]}, _adagrad),
    "adamax": Rule(lambda h: {"step": 0, "exp_avg": 0, "exp_inf": 0}, _adamax),
    "nadam": Rule(lambda h: {**_MOMENTS, "mu_product": 1.0}, _nadam),
    "radam": Rule(lambda h: _MOMENTS, _radam),
    "asgd": Rule(lambda h: {"step": 0, "eta": h["lr"], "mu": 1.0, "ax": 0}, _asgd),
    "rprop": Rule(lambda h: {"step": 0, "prev": 0, "step_size": h["lr"]}, _rprop),
}
RULES: dict[str, Rule] = {
    "sgd": Rule(lambda h: {"momentum_buffer": 0.0} if h["momentum"] != 0 else {}, _sgd),
    "rmsprop": Rule(_rmsprop_state, _rmsprop),
    "adam": Rule(_adam_state, _adam),
    "lamb": Rule(lambda h: _MOMENTS, _lamb),
    **FURTHER_RULES,
}


def clip_by_global_norm(grads: Sequence[torch.Tensor], max_norm: float) -> list[torch.Tensor]:
    """Scale gradients so that their joint L2 norm is at most ``max_norm``.

    The same arithmetic as ``torch.nn.utils.clip_grad_norm_``.
    """
    norms = torch.stack([_norm(grad) for grad in grads])
    coefficient = (max_norm / (_norm(norms) + 1e-6)).clamp(max=1.0)
    return [grad * coefficient for grad in grads]


def apply(
    rule: UpdateRule,
    params: Mapping[str, torch.Tensor],
    grads: Mapping[str, torch.Tensor],
    state: Mapping[str, State],
    hyper: Mapping[str, torch.Tensor],
    write: Write = write_nearest,
) -> None:
    """Update ``params`` and ``state`` in place from ``grads``; all maps are by name.

    A group with ``maximize`` among its values ascends. ``write`` rounds results that are wider than
    their tensor.
    """
    grouped = {name for group in rule.groups for name in group.params}
    # In the order of the model, as clip_grad_norm_(model.parameters()) adds up their norms.
    names = [name for name in params if name in grouped and name in grads]
    scale: Number = hyper["loss_scaling"] if rule.loss_scaling_variable else rule.loss_scaling
    # Widened first: a half gradient divided by its scale may no longer be one.
    values = [_row(grads[name].to(_widened(params[name]).dtype)) for name in names]
    if isinstance(scale, torch.Tensor) or scale != 1.0:
        values = [value / scale for value in values]
    if math.isfinite(rule.max_grad_norm) and values:
        values = clip_by_global_norm(values, rule.max_grad_norm)
    by_name = dict(zip(names, values, strict=True))
    repeats, update = Repeats(), RULES[rule.kind].update
    for index, group in enumerate(rule.groups):
        numbers: dict[str, Number] = dict(group.values)
        numbers |= {name: hyper[f"group{index}.{name}"] for name in group.variable}
        for name in group.params:
            if name in by_name:
                tensors = (params[name], by_name[name], state[name])
                run = functools.partial(_update, update, *tensors, numbers, write)
                key = (index, tuple(state[name]))
                repeats.run(key, run, [*tensors[:2], *state[name].values()])


def _update(
    update: Callable[[torch.Tensor, torch.Tensor, State, Mapping[str, Number]], None],
    param: torch.Tensor,
    grad: torch.Tensor,
    state: State,
    numbers: Mapping[str, Number],
    write: Write,
) -> None:
    """Apply an optimizer's update in float32 or wider; round half tensors once, at the end."""
    wide = {name: _widened(value) for name, value in state.items()}
    wide |= {name: _row(value) for name, value in wide.items() if name not in SCALARS}
    wide_param = _row(_widened(param))
    grad = _widened(grad)
    update(wide_param, -grad if numbers.get("maximize") else grad, wide, numbers)
    for name, value in wide.items():
        if value is not state[name]:
            write(state[name], value.reshape(state[name].shape))
    if wide_param is not param:
        write(param, wide_param.reshape(param.shape))


def _row(value: torch.Tensor) -> torch.Tensor:
    """Return a 0-d tensor as a copy of shape ``[1]``.

    A hyper-parameter is a 0-d float64 tensor. By torch's type promotion it would turn a 0-d
    parameter into float64, but not one with dimensions.
    """
    return value.clone().reshape(1) if value.dim() == 0 else value


def _widened(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


Nodes = list[torch.fx.Node]
_Layout = tuple[tuple[int, ...], tuple[int, ...]]

_COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class Repeats:
    """A cache of traced nodes by key and tensor layouts, for equal updates of parameters."""

    def __init__(self):
        self._traced: dict[Hashable, _Pattern] = {}

    def run(
        self, key: Hashable, function: Callable[[], None], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Call a traced function, or copy the nodes of an earlier call with the same key.

        Args:
            key: of everything besides ``tensors`` that affects ``function``.
            function: returns nothing; writes to ``tensors`` in place.
            tensors: the tensors read or written that differ between calls with this key.
        """
        traced = [_torch.traced_node(tensor) for tensor in tensors]
        arguments = [node for node in traced if node is not None]
        if len(set(arguments)) < len(tensors):
            function()  # no trace is open, or a tensor came twice and its uses cannot be told apart
            return
        key = (key, *((t.dtype, t.device, t.dim() == 0) for t in tensors))
        exactly = (key, *((t.shape, t.stride()) for t in tensors))
        layout = _plain_layout(tensors)
        pattern = self._traced.get(exactly)
        if pattern is None and layout is not None:
            pattern = self._traced.get(key)
        if pattern is not None:
            pattern.copy(arguments, layout)
            return
        before = next(iter(reversed(_torch.traced_nodes())))
        function()
        newest = itertools.takewhile(lambda n: n is not before, reversed(_torch.traced_nodes()))
        pattern = _Pattern(arguments, list(newest)[::-1], layout)
        self._traced[exactly] = pattern
        if layout is not None and all(_is_of_elements(node, layout) for node in pattern.nodes):
            self._traced[key] = pattern


@dataclasses.dataclass(frozen=True)
class _Pattern:
    """The traced nodes of one update, which can be copied for other tensors.

    Attributes:
        nodes: the traced nodes after these.
        layout: the plain layout of the tensors, if they have one.
    """

    tensors: Nodes
    nodes: Nodes
    layout: _Layout | None

    def copy(self, tensors: Nodes, layout: _Layout | None) -> None:
        """Add copies of the traced nodes for other tensors."""
        # The tensors keep their nodes: reading one after the copied writes reads what was written.
        copies = dict(zip(self.tensors, tensors, strict=True))
        values: dict[torch.dtype, torch.Tensor] = {}
        for node in self.nodes:
            copies[node] = copied = copied_node(node.graph, node, lambda old: copies.get(old, old))
            if layout != self.layout and copied.meta["val"].dim():
                assert layout is not None
                _lay_out(copied, layout, values)


def _plain_layout(tensors: Sequence[torch.Tensor]) -> _Layout | None:
    """Return the common shape and contiguous strides of tensors, scalars excepted, or None.

    Plain means contiguous, also in the strides of dimensions of size one.
    """
    layouts = {(tuple(t.shape), t.stride()) for t in tensors if t.dim()}
    if len(layouts) != 1:
        return None
    shape, stride = layouts.pop()
    steps: list[int] = list(itertools.accumulate((1, *shape[:0:-1]), operator.mul))
    contiguous = stride == tuple(reversed(steps))
    return (shape, stride) if contiguous and min(shape) > 0 else None


def _is_of_elements(node: torch.fx.Node, layout: _Layout) -> bool:
    """Return whether a node is elementwise, so that it can be copied for any layout."""
    value = node.meta.get("val")
    if node.target not in _COPIES and not has_tag(node, torch.Tag.pointwise):
        return False
    if not isinstance(value, torch.Tensor):
        return False
    return not value.dim() or (tuple(value.shape), value.stride()) == layout


def _lay_out(node: torch.fx.Node, layout: _Layout, values: dict[torch.dtype, torch.Tensor]) -> None:
    """Set another layout on a copied node's value; ``values`` caches one tensor per dtype."""
    shape, stride = layout
    before = node.meta["val"]
    if before.dtype not in values:
        with _torch.disable_proxy_modes_tracing():
            values[before.dtype] = torch.empty_strided(
                shape, stride, dtype=before.dtype, device=before.device
            )
    node.meta["val"] = values[before.dtype]
    if "tensor_meta" in node.meta:
        described = node.meta["tensor_meta"]
        node.meta["tensor_meta"] = described._replace(shape=torch.Size(shape), stride=stride)
