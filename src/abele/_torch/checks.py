"""Self-checks of private names of torch, for versions this project was not tried with.

Each probe uses names of this folder as programs do, on tensors of a few elements. Together they
take a tenth of a second, once in a process, and never with a version that was tried.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import nn

from abele import _torch
from abele._torch import contexts, versions

aten = torch.ops.aten


def require_capture() -> None:
    """Check what the capture of any program needs.

    Raises:
        TorchVersionError: a newer torch than those tried lacks it.
    """
    found = failed()["capture"]
    if found is not None:
        raise versions.missing(found)


def why_not_compiled() -> str | None:
    """Return why no program is compiled with this torch; None if its self-checks pass."""
    found = failed()["compiled code"]
    if found is None:
        return None
    return f"torch {torch.__version__} was not tried and fails a self-check of abele: {found}."


def failed() -> Mapping[str, str | None]:
    """Return what fails, by what needs it, with None for what passes or needs no check."""
    with _LOCK:
        return _PASSED if versions.tried else _failed()


@functools.cache
def _failed() -> Mapping[str, str | None]:
    return MappingProxyType({purpose: _first(probes) for purpose, probes in PROBES.items()})


def _first(probes: tuple[Callable[[], bool], ...]) -> str | None:
    """Return a phrase on the first probe that fails or raises; None if all pass."""
    for probe in probes:
        name = probe.__name__.strip("_").replace("_", " ")
        try:
            if not probe():
                return f"{name} differ"
        except Exception as error:  # noqa: BLE001 - whatever a name that has changed may raise
            said = (str(error).strip().splitlines() or [""])[0]
            return f"{name} ({type(error).__name__}: {said})"
    return None


def _traced_programs() -> bool:
    seen: list[object] = []

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        with _torch.Interception() as trace:
            trace.intercept(lambda f, args, kwargs, run: run(f, args, kwargs), seen.append)
            y = (x.sin() * x).sum()
            (gradient,) = torch.autograd.grad(y, [x])
            node = trace.node_of(gradient)
            assert node is not None
            copied = _torch.laid_out_like(gradient, mode)
            trace.stand_for(copied, node)
        with _torch.outside_the_trace():
            constant = torch.ones(1) + 1
        assert _torch.traced_node(copied) is node
        return [y, copied * constant]

    with _torch.static_fakes() as mode, _torch.without_onednn(), _torch.code_when_run():
        leaf = _torch.laid_out_like(torch.empty(3), mode).requires_grad_()
        graph = _torch.graph_of(function, [leaf], {})
    x = torch.tensor([0.5, 1.0, 2.0])
    _, gradient = graph(x)
    return bool(seen) and torch.allclose(gradient, 2 * (x.cos() * x + x.sin()))


def _refused_values() -> bool:
    try:
        _torch.laid_out((), (), torch.float32, torch.device("cpu"), _torch.static_fakes()).item()
    except _torch.DataDependentOutputException:
        return True
    return False


def _listed_hooks() -> bool:
    layer, weight = nn.Linear(1, 1), nn.Parameter(torch.ones(1))
    layer.register_forward_pre_hook(lambda *_: None)
    layer.register_full_backward_hook(lambda *_: None)
    weight.register_hook(lambda gradient: gradient)
    rule = torch.optim.SGD([weight], 0.1)
    rule.register_step_post_hook(lambda *_: None)
    counts = [
        *(len(each) for each in contexts.of_backward(layer)),
        *(len(contexts.of_gradient(weight)), len(contexts.after_accumulation(weight))),
        *(len(contexts.around_step(rule)), len(_torch.forward_pre_hooks(layer))),
        len(_torch.children_by_name(nn.Sequential(layer))),
    ]
    return counts == [0, 1, 1, 0, 1, 1, 1] and contexts.writes(weight) == 0


def _named_operators() -> bool:
    operator = aten.add_.Tensor
    schema = _torch.schema_of(operator)
    return (
        _torch.find_operator(_torch.operator_name(operator)) is operator
        and operator in _torch.overloads(aten.add_)
        and [each.name for each in schema.arguments] == ["self", "other", "alpha"]
        and schema.is_mutable
        and _torch.is_composite(aten.matmul.default)
        and not _torch.is_composite(aten.mm.default)
    )


def _kernels_behind_operators() -> bool:
    x, kernel = torch.ones(4), _torch.kernel_of(aten.add.Tensor)
    same = _torch.memory_of(x) == _torch.memory_of(x[1:]) != _torch.memory_of(x.clone())
    return same and torch.equal(kernel(x, x, alpha=3), 4 * x)


def _convolutions_with_activation() -> bool:
    function = _torch.convolution_with_activation()
    if function is None:
        return True
    x, weight, bias = torch.ones(1, 1, 3, 3), torch.full((1, 1, 3, 3), -0.2), torch.ones(1)
    result = function(x, weight, bias, [1, 1], [1, 1], [1, 1], 1, "relu", [], "")
    return torch.allclose(result, torch.conv2d(x, weight, bias, padding=1).relu())


def _settings_of_onednn() -> bool:
    before = torch.backends.mkldnn.enabled
    with _torch.without_onednn():
        inside = torch.backends.mkldnn.enabled
    return not inside and torch.backends.mkldnn.enabled == before


#: Probes by what needs the names that they use.
PROBES: dict[str, tuple[Callable[[], bool], ...]] = {
    "capture": (
        *(_named_operators, _kernels_behind_operators, _listed_hooks),
        *(_settings_of_onednn, _refused_values, _traced_programs),
    ),
    "compiled code": (_convolutions_with_activation,),
}
_PASSED: Mapping[str, str | None] = MappingProxyType(dict.fromkeys(PROBES))
_LOCK = threading.Lock()
