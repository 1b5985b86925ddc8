"""Optimizers (SGD, Adam, AdamW, RMSprop, LAMB) with PopTorch's extra arguments.

They are torch's own classes, usable on the host, that carry what a program needs: which values may
change after compilation, loss scaling, clipping. Inside a wrapped model their ``step`` never runs;
``_optim.reading`` reads their attributes.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from abele.step.optimizers import Kind
from poptorch._optim.reading import host_step
from poptorch._optim.state import HostState

__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]


class VariableAttributes:
    """The optimizer attributes, such as the learning rate, that may change after compilation.

    Methods raise AssertionError if the optimizer has no attribute of the name ``attr``.
    """

    def __init__(self, variable_attributes: list[str], allowed_attributes: list[str]):
        # Published programs set these names.
        self._variable_attributes = list(variable_attributes)
        self._allowed_attributes = list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        """Return whether an optimizer attribute is compiled in as a constant."""
        return self._known(attr) not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Mark an optimizer attribute as compiled in: changing it afterwards is an error."""
        if not self.isConstant(attr):
            self._variable_attributes.remove(attr)

    def markAsVariable(self, attr: str) -> None:
        """Mark an optimizer attribute as one that may change after compilation."""
        if self.isConstant(attr):
            self._variable_attributes.append(attr)

    def _known(self, attr: str) -> str:
        if attr not in self._allowed_attributes:
            known = self._allowed_attributes
            raise AssertionError(f"Unknown attribute {attr!r}. Known are {known}.")
        return attr


def _accumulator(value: torch.dtype | None) -> torch.dtype:
    if value not in (None, torch.float32, torch.float16):
        raise AssertionError(
            f"Accumulation types must be torch.float32 or torch.float16, found {value}."
        )
    return value or torch.float32


def _max_norm(value: float | None) -> float:
    if value is not None and math.isnan(value):
        raise AssertionError("max_grad_norm must be a number, found NaN. Use infinity for none.")
    return math.inf if value is None else float(value)


def _or(default: Any) -> Callable[[Any], Any]:
    return lambda value: default if value is None else value


# Arguments that torch's constructors do not have: each becomes an attribute, by this conversion.
_OWN: dict[str, Callable[[Any], Any]] = {
    "loss_scaling": _or(1.0),
    "velocity_scaling": _or(1.0),
    "bias_correction": _or(True),
    "use_combined_accum": bool,
    "use_tf_variant": bool,
    "accum_type": _accumulator,
    "velocity_accum_type": _accumulator,
    "first_order_momentum_accum_type": _accumulator,
    "second_order_momentum_accum_type": _accumulator,
    "max_grad_norm": _max_norm,
}
_MAY_CHANGE = {
    *("lr", "momentum", "dampening", "weight_decay", "betas", "eps", "alpha"),
    *("loss_scaling", "velocity_scaling", "max_weight_norm"),
}


class Optimizer(HostState):
    """The base class of poptorch's optimizers; see ``HostState`` for state dictionaries.

    Arguments of several optimizers, in addition to torch's own:

    - ``maximize``: climb instead of descend; the original ignores it.
    - ``foreach``, ``fused``, ``capturable``: torch's choice of kernels on the host; neutral in a
      wrapped model.
    - ``differentiable``: for the host; a wrapped model refuses it.
    - ``amsgrad``: must be unset or False (ValueError otherwise).
    - ``loss_scaling``: factor on the loss in backward, divided out before the update.
    - ``accum_type``, ``velocity_accum_type``, ``first_order_momentum_accum_type``,
      ``second_order_momentum_accum_type``: dtypes of gradient accumulators, of the momentum and of
      the two moments, torch.float32 or torch.float16.
    - ``max_grad_norm``: global norm to which gradients are clipped.

    Attributes:
        variable_attrs: which values may change after compilation.
    """

    variable_attrs: VariableAttributes
    loss_scaling: float
    velocity_scaling: float
    use_combined_accum: bool

    def _start(self, base: Any, arguments: dict[str, Any]) -> None:
        """Initialize torch's and PopTorch's arguments from a constructor's ``locals()``."""
        own = {name: value for name, value in arguments.items() if name != "self"}
        params = own.pop("params")
        if own.pop("amsgrad", None):
            raise ValueError("Only non-amsgrad Adam and AdamW are supported. Leave amsgrad unset.")
        given = {name: value for name, value in own.items() if value is not None}
        # torch's own defaults stand in for arguments that were not passed.
        of_torch = {name: value for name, value in given.items() if name not in _OWN}
        base.__init__(self, params, **of_torch)
        for name, value in own.items():
            if name in _OWN:
                setattr(self, name, _OWN[name](value))
        # An argument that was passed explicitly is expected to change; a default is not.
        known = [name for name in own if name in _MAY_CHANGE]
        self.variable_attrs = VariableAttributes([n for n in known if n in given], known)


class SGD(Optimizer, torch.optim.SGD):
    """The stochastic gradient descent optimizer.

    Arguments are those of torch and of ``Optimizer``, and two of its own. ``velocity_scaling`` is
    the scale of the combined accumulator: without momentum the gradient is multiplied by it,
    rounded, and then by lr / velocity_scaling; else it is neutral. ``use_combined_accum`` asks for
    one buffer for accumulation and momentum; without it velocity_scaling has no effect.

    Differs from torch: inside a wrapped model dampening acts on the first step too.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        fused: bool | None = None,
    ):
        self._start(torch.optim.SGD, locals())
        if self.use_combined_accum:
            # Only this form has the value per group.
            self.defaults["velocity_scaling"] = self.velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.velocity_scaling)


class Adam(Optimizer, torch.optim.Adam):
    """The Adam optimizer with L2 regularisation (arXiv 1412.6980).

    Arguments are those of torch and of ``Optimizer``.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
        *,
        decoupled_weight_decay: bool | None = None,
    ):
        self._start(torch.optim.Adam, locals())


class AdamW(Optimizer, torch.optim.AdamW):
    """The Adam optimizer with decoupled weight decay (arXiv 1711.05101).

    Arguments are those of torch and of ``Optimizer``. ``bias_correction=False`` leaves the moments
    uncorrected in a wrapped model; the original corrects them all the same, as torch's own step
    does on the host.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ):
        self._start(torch.optim.AdamW, locals())


class RMSprop(Optimizer, torch.optim.RMSprop):
    """The RMSprop optimizer (Hinton, lecture 6e of "Neural networks for machine learning").

    Arguments are those of torch and of ``Optimizer``. With ``use_tf_variant`` epsilon is inside the
    root and squares start at one.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
        *,
        capturable: bool | None = None,
    ):
        self._start(torch.optim.RMSprop, locals())


class _LAMB(torch.optim.Optimizer):
    """Base class of LAMB in the form of torch's optimizers."""

    def __init__(self, params: Iterable, **arguments: Any):
        defaults = {
            "lr": 1e-3,
            "betas": (0.9, 0.999),
            "eps": 1e-8,
            "weight_decay": 1e-2,
            "max_weight_norm": 65500.0,
        }
        super().__init__(params, defaults | arguments)


class LAMB(Optimizer, _LAMB):
    """The LAMB optimizer (arXiv 1904.00962), with one trust ratio per parameter tensor.

    Arguments are those of ``Optimizer``, and by default lr=1e-3, betas=(0.9, 0.999), eps=1e-8,
    weight_decay=1e-2, bias_correction=True. ``max_weight_norm`` is the upper limit of the weight
    norm in the trust ratio, by default 65500; with 0 weights stay as they are.
    """

    update_kind = Kind(_LAMB, "lamb", ("lr", "betas", "eps", "weight_decay", "max_weight_norm"))

    def __init__(
        self,
        params: Iterable,
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ):
        self._start(_LAMB, locals())

    @property
    def max_weight_norm(self) -> float:
        """The upper limit of the weight norm in the trust ratio, for all parameter groups."""
        return self.defaults["max_weight_norm"]

    @max_weight_norm.setter
    def max_weight_norm(self, value: float) -> None:
        for values in (self.defaults, *self.param_groups):
            values["max_weight_norm"] = value

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the parameters on the host with LAMB, as a wrapped model does on the device.

        Args:
            closure: computes the loss again, with gradients, before the update; optional.

        Returns:
            The closure's result, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        host_step(self)
        return loss
