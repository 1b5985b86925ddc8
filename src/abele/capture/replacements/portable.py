"""Replacements of torch functions that read tensor values while forward is captured."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele._torch.contexts import scripted_functions_replaced
from abele.capture import losses
from abele.capture.replacements import graph_operators, recurrent_layers, static_forms
from abele.containers import is_sequence
from abele.errors import LossError
from abele.ops import ctc
from abele.trace.decompositions import constant_value
from abele.warn import warn_user

aten = torch.ops.aten

Function = Callable[..., Any]

_REDUCTIONS = ("none", "mean", "sum")  # by the numbers that operators use


# Losses whose kernels accept class indices as int64 only.
_OF_CLASSES = (F.nll_loss, F.cross_entropy)


def _with_wide_classes(
    func: Function, scores: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """Widen int32 class indices of a loss to int64."""
    return func(scores, target.long() if target.dtype == torch.int32 else target, *args, **kwargs)


# Position of the argument ``sparse`` by embedding function.
_SPARSE_AT = {F.embedding: 6, F.embedding_bag: 7, torch.embedding: 4, torch.embedding_bag: 5}


def _with_dense_gradient(
    func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.Tensor:
    index = _SPARSE_AT[func]
    if kwargs.get("sparse") or (len(args) > index and args[index]):
        warn_user(
            "An embedding with sparse=True gets a dense gradient of the same values: programs "
            "compute with dense tensors. Momentum and weight decay act on all of its rows.",
            UserWarning,
        )
        kwargs = {name: value for name, value in kwargs.items() if name != "sparse"}
        args = (*args[:index], False, *args[index + 1 :]) if len(args) > index else args
    return func(*args, **kwargs)


_NAMED_OPERATORS: Any = (_torch.OpOverloadPacket, _torch.OpOverload)


def _with_form(func: Function, *args: Any, **kwargs: Any) -> Any:
    result = static_forms.FORMS[func](*args, **kwargs)
    if func in losses.LOSS_FUNCTIONS:
        # Whoever looks for losses sees only the functions that the form calls.
        losses.mark_loss(result, losses.LOSS_FUNCTIONS[func])
    return result


def _has_library_layer(
    x: torch.Tensor, hx: Any, params: Any = (), *settings: Any, **others: Any
) -> bool:
    """Return whether an LSTM calls the operator of ``ops.lstm``.

    One over packed sequences has their lengths as second argument, and stays in torch's own form.
    """
    del settings
    alike = is_sequence(hx) and all(each.dtype is torch.float32 for each in (x, *hx, *params))
    return alike and not others and torch.backends.mkldnn.is_available()


class _PortableFunctions(TorchFunctionMode):
    def __init__(self, training: bool, whole_layers: bool, widens: bool):
        super().__init__()
        self._training, self._whole_layers, self._widens = training, whole_layers, widens

    def __torch_function__(
        self, func: Function, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is F.ctc_loss or func is torch.ctc_loss:
            return self._ctc_loss(*args, **(kwargs or {}))
        if func in _OF_CLASSES and self._widens:
            return _with_wide_classes(func, *args, **(kwargs or {}))
        if func in _SPARSE_AT:
            return _with_dense_gradient(func, args, kwargs or {})
        if func == torch.lstm and _has_library_layer(*args):
            with _torch.with_outer_onednn():
                return func(*args)
        if self._whole_layers and recurrent_layers.is_layer(func, args, kwargs):
            return recurrent_layers.layers(func, *args)
        if isinstance(func, _NAMED_OPERATORS):
            name = str(func).removesuffix(".default")
            return graph_operators.OPERATORS.get(name, func)(*args, **(kwargs or {}))
        if func in static_forms.FORMS:
            return _with_form(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _ctc_loss(
        self,
        log_probs: torch.Tensor,
        targets: torch.Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: str | int = "mean",
        zero_infinity: bool = False,
    ) -> torch.Tensor:
        reduction = _REDUCTIONS[reduction] if isinstance(reduction, int) else reduction
        if self._training and reduction == "none":
            raise LossError(
                'ctc_loss with reduction="none" is not supported in training. Use "mean" or "sum".'
            )
        loss = ctc.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        )
        losses.mark_loss(loss, "ctc_loss")
        return loss


@contextlib.contextmanager
def portable_functions(
    *, training: bool, whole_layers: bool, widens: bool = False
) -> Generator[None]:
    """Replace torch functions that read tensor values, in a ``with`` block.

    These are ``ctc_loss``, those of ``static_forms``, and the layers of
    transformers that ask whether a mask is causal; and gradients of embeddings are dense, and
    operators of graph libraries are torch's own.

    Args:
        training: losses without reduction have to be one number.
        whole_layers: recurrent layers are one operator, see ``recurrent_layers``.
        widens: losses take classes as int32, too, which torch refuses.
    """
    graph_operators.name_callers()
    given = {"training": training, "whole_layers": whole_layers, "widens": widens}
    with (
        _PortableFunctions(**given),
        _torch.recomputed_within(functools.partial(portable_functions, **given)),
        _torch.causal_masks_from(constant_value),
        scripted_functions_replaced(graph_operators.scripted()),
    ):
        yield
