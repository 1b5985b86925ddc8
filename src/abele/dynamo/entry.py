"""The backend that ``torch.compile`` finds under the name ``abele``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele import _torch
from abele._torch import aot
from abele.compilation.build import FallbackWarning
from abele.compilation.cache import ExecutableCache
from abele.compilation.start import Start
from abele.dynamo.programs import Phase
from abele.dynamo.running import Graph, Settings
from abele.errors import CaptureError, TargetError
from abele.trace.decompositions import PORTABLE_OPERATORS, bernoulli_in_memory_order
from abele.warn import warn_user

_LOG = logging.getLogger("abele.dynamo")
_OPTIONS = ("cache", "start")
aten = torch.ops.aten


def backend(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo; called by ``torch.compile(function, backend="abele")``.

    Args:
        graph: of a function, or of a part of it if Dynamo breaks it.
        inputs: example inputs of the graph.
        mode: of ``torch.compile``; has no effect, with one warning.
        options: of ``torch.compile``: ``cache``, the path of a folder of executables; ``start``,
            ``tiered`` (the default), ``wait`` or ``interpret``.

    Returns:
        A function of the graph's inputs that returns a tuple of its results.

    Raises:
        TargetError: an option is unknown or has no such value.
        CaptureError: an input is sharded over processes.
    """
    settings = _settings(options or {})
    if mode is not None:
        _warn_of_mode(mode)
    if aot.sharded(inputs):
        raise CaptureError(
            "backend='abele' was asked for, but an input of the graph is a DTensor, which holds a "
            "part of a tensor (fully_shard, tensor parallelism). Use DistributedDataParallel, or "
            "another backend."
        )
    plain = graph.forward
    try:
        with _torch.TRACING:
            return _compiled(graph, aot.without_symbols(graph, inputs), settings)
    except Exception as error:
        if isinstance(error, Warning) or aot.steers_dynamo(error):
            raise
        _warn_plain(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        return plain


def _compiled(
    graph: torch.fx.GraphModule, examples: Sequence[Any], settings: Settings
) -> Callable[..., Any]:
    """Differentiate a graph ahead of time, and compile its forward and backward graphs."""
    static = set[str]()

    def compiler(phase: Phase) -> Callable[[torch.fx.GraphModule, Sequence[Any]], aot.Boxed]:
        def compiled(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> aot.Boxed:
            del inputs
            if phase != "backward":
                positions = aot.static_inputs()
                placeholders = graph.graph.find_nodes(op="placeholder")
                static.update(node.name for i, node in enumerate(placeholders) if i in positions)
            return aot.boxed(Graph(graph, phase, static, settings))

        return compiled

    return aot.differentiated(
        graph,
        examples,
        forward=compiler("forward"),
        backward=compiler("backward"),
        inference=compiler("inference"),
        decompositions=_DECOMPOSITIONS,
    )


def _settings(options: Mapping[str, Any]) -> Settings:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise TargetError(
            f"torch.compile(backend='abele') was given the options {unknown}. It has "
            f"{' and '.join(_OPTIONS)}."
        )
    start = options.get("start", Start.TIERED)
    if start not in list(Start):
        raise TargetError(
            f"torch.compile(backend='abele') was given start={start!r}. Use one of "
            f"{', '.join(Start)}."
        )
    folder: Any = options.get("cache")
    cache = None if folder is None else ExecutableCache(folder)
    return Settings(start=Start(start), cache=cache, announce=_LOG.info)


@functools.cache
def _warn_of_mode(mode: str) -> None:
    warn_user(f"torch.compile's mode={mode!r} has no effect with backend='abele'.", RuntimeWarning)


@functools.cache
def _warn_plain(reason: str) -> None:
    """Warn that a function runs as plain PyTorch, once in a process for each reason."""
    warn_user(
        f"A function of torch.compile(backend='abele') runs as plain PyTorch: {reason}",
        FallbackWarning,
    )


# -- operators that ahead-of-time autograd traces otherwise than plain PyTorch computes them -------


def _dropout(
    x: torch.Tensor, p: float, train: bool | None = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Trace dropout as plain PyTorch computes it on the host; save one byte per element."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x.mul(torch.zeros_like(x)), torch.zeros_like(x, dtype=torch.bool)
    kept = bernoulli_in_memory_order(torch.empty_like(x), 1 - p)
    return x * kept.div(1 - p), kept.to(torch.bool)


def _dropout_backward(gradient: torch.Tensor, kept: torch.Tensor, scale: float) -> torch.Tensor:
    if scale == 0:
        return torch.zeros_like(gradient)
    p = float(f"{1 / scale:.15g}")  # forward divided by it
    return gradient * kept.to(gradient.dtype).div(p if 1 / p == scale else 1 / scale)


# Otherwise the last bits of results would differ from plain PyTorch's.
_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _dropout,
    aten.native_dropout_backward.default: _dropout_backward,
    **{
        each: PORTABLE_OPERATORS[each]
        for each in (
            aten.binary_cross_entropy_with_logits.default,
            getattr(aten.random_, "from"),
        )
    },
}
