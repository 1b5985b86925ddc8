"""Self-checks of private names of torch, for versions this project was not tried with.

They use this folder as programs do, a tenth of a second once in a process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from abele import _torch
from abele._torch import contexts, versions
from abele.errors import TorchVersionError

aten = torch.ops.aten


def require_capture() -> None:
    """Raise TorchVersionError if a newer torch than those tried lacks what captures need."""
    if (found := failed("capture")) is not None:
        raise TorchVersionError(versions.lacks(found))


def why_not_compiled() -> str | None:
    """Return why no program is compiled with this torch; None if its self-checks pass."""
    found = failed("compiled code")
    return found and f"torch {torch.__version__} is new and fails a self-check of abele: {found}."


@functools.cache
def failed(purpose: str) -> str | None:
    """Return what fails of a purpose's checks; None if all pass, or this torch was tried."""
    if versions.tried:
        return None
    for name, passes in CHECKS[purpose]:
        try:
            if not passes():
                return f"{name} differ"
        except Exception as error:  # noqa: BLE001 - whatever a name that has changed may raise
            return f"{name} ({type(error).__name__}: {str(error).partition(chr(10))[0]})"
    return None


def _programs_are_traced() -> bool:
    def call(function: Any, args: Any, kwargs: Any, run: Callable[..., Any]) -> Any:
        return run(function, args, kwargs)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        with _torch.Interception() as trace:
            trace.intercept(call, lambda node: None)
            (gradient,) = torch.autograd.grad((x.sin() * x).sum(), [x])
            node = trace.node_of(gradient)
            assert node is not None
            trace.stand_for(copied := _torch.laid_out_like(gradient, mode), node)
        with _torch.outside_the_trace():
            two = torch.ones(1) + 1
        return [copied * two] if _torch.traced_node(copied) is node else []

    with _torch.static_fakes() as mode, _torch.code_when_run():
        leaf = _torch.laid_out((3,), (1,), torch.float32, torch.device("cpu"), mode)
        graph = _torch.graph_of(function, [leaf.requires_grad_()])
    (result,) = graph(x := torch.arange(3.0))
    return torch.allclose(result, 2 * (x.cos() * x + x.sin()))


def _values_are_refused() -> bool:
    try:
        _torch.static_fakes().from_tensor(torch.ones(())).item()
    except _torch.DataDependentOutputException:
        return True
    return False


def _hooks_are_found() -> bool:
    layer, weight, seen = nn.Linear(1, 1), nn.Parameter(torch.ones(1)), print
    rule: Any = torch.optim.SGD([weight], 0.1)
    rule.register_step_post_hook(seen)
    untyped: Any = layer, weight
    untyped[0].register_forward_pre_hook(seen)
    untyped[0].register_full_backward_hook(seen)
    untyped[1].register_hook(seen)
    found = contexts.of_backward(layer), contexts.of_gradient(weight), contexts.around_step(rule)
    return [
        *(list(found[0][1].values()), *found[1:], list(_torch.forward_pre_hooks(layer).values())),
        *(contexts.after_accumulation(weight), [*_torch.children_by_name(nn.Sequential(layer))]),
    ] == [[seen]] * 4 + [[], ["0"]]


def _onednn_is_set() -> bool:
    before: Any = torch.backends.mkldnn.enabled
    with _torch.without_onednn():
        inside: Any = torch.backends.mkldnn.enabled
    return (inside, torch.backends.mkldnn.enabled) == (False, before)


def _operators_have_names() -> bool:
    operator = aten.add_.Tensor
    schema = _torch.schema_of(operator)
    return (
        _torch.find_operator(_torch.operator_name(operator)) is operator
        and [schema.is_mutable, *(each.name for each in schema.arguments)]
        == [True, "self", "other", "alpha"]
        and _torch.is_composite(aten.matmul.default) > _torch.is_composite(aten.mm.default)
    )


def _operators_have_kernels() -> bool:
    x, kernel = torch.ones(4), _torch.kernel_of(aten.add.Tensor)
    same = _torch.memory_of(x) == _torch.memory_of(x[1:]) != _torch.memory_of(x.clone())
    return same and torch.equal(kernel(x, x, alpha=3), 4 * x)


def _convolutions_have_activations() -> bool:
    x, weight, bias = torch.ones(1, 1, 3, 3), torch.full((1, 1, 3, 3), -0.2), torch.ones(1)
    function = _torch.convolution_with_activation()
    settings: Any = [1, 1], [1, 1], [1, 1], 1, "relu", [], ""
    plain = torch.conv2d(x, weight, bias, padding=1).relu()
    return function is None or torch.allclose(function(x, weight, bias, *settings), plain)


def _linear_layers_have_biases() -> bool:
    x, weight, bias = torch.ones(2, 3), torch.full((4, 3), -0.2), torch.ones(4)
    function = _torch.linear_with_bias()
    plain = torch.addmm(bias, x, weight.t())
    return function is None or torch.allclose(function(x, weight, bias, "none", [], ""), plain)


#: Names and functions of self-checks, by what needs the private names that they use.
CHECKS: dict[str, list[tuple[str, Callable[[], bool]]]] = {
    "capture": [
        ("names of operators", _operators_have_names),
        ("kernels of operators", _operators_have_kernels),
        ("lists of hooks", _hooks_are_found),
        ("settings of oneDNN", _onednn_is_set),
        ("refused values", _values_are_refused),
        ("traced programs", _programs_are_traced),
    ],
    "compiled code": [
        ("convolutions with activation", _convolutions_have_activations),
        ("linear layers with bias", _linear_layers_have_biases),
    ],
}
