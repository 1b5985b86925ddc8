"""Detection of a forward's loss by its operator, with warnings on untrained values.

While forward runs, every call of a known loss function is noted with the tensor it returned. A loss
that feeds another loss is an ordinary reduction; exactly one must remain. A value that forward
computes from the loss, or next to it, has no part in training unless it is marked; warnings name
such values, and state that forward does not keep.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.containers import traverse
from abele.contexts import held
from abele.errors import LossError
from abele.program import ancestors, is_getitem, is_view
from abele.program.core import user_line
from abele.warn import warn_user


def _loss_functions() -> dict[Callable[..., Any], str]:
    """List the losses of ``torch.nn.functional``: functions with an argument ``reduction``."""
    functions: dict[Callable[..., Any], str] = {}
    for name, function in inspect.getmembers(F, inspect.isfunction):
        if not name.startswith("_") and "reduction" in inspect.signature(function).parameters:
            functions[function] = name
            # ``torch`` has some of the same operators under the same name.
            functions[getattr(torch, name, function)] = name
    return functions


LOSS_FUNCTIONS = _loss_functions()

#: The name of a loss that the user marked.
MARKED = "identity_loss"

# The call that marks a loss in the user's programs; a front-end sets its own function's name.
_marking = contextvars.ContextVar("marking", default="mark_loss({})")
_active: contextvars.ContextVar[LossFinder | None] = contextvars.ContextVar("finder", default=None)


def mark_loss(tensor: torch.Tensor, name: str = MARKED) -> None:
    """Declare ``tensor`` a loss of the model being captured; do nothing outside of a capture."""
    finder = _active.get()
    if finder is not None:
        finder.losses.append((name, tensor))


def marking(call: str) -> contextlib.AbstractContextManager[None]:
    """Set the call that advice suggests for marking a loss, in a ``with`` block.

    Args:
        call: as a program writes it, with ``{}`` for the loss.
    """
    return held(_marking, call)


def autograd_functions(values: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield the functions of some values' autograd graph, each once, depth first and in order."""
    starts: list[Any] = [value.grad_fn for value in values if value.grad_fn is not None]
    return traverse(starts, lambda node: (each for each, _ in node.next_functions if each))


def marked(value: str) -> str:
    """Format the call by which a program marks a value as the loss."""
    return _marking.get().format(value)


class LossFinder(TorchFunctionMode):
    """A torch function mode that records every loss that forward computes.

    Attributes:
        losses: name and value of each, in the order of computation.
    """

    def __init__(self):
        super().__init__()
        self.losses: list[tuple[str, torch.Tensor]] = []

    def __enter__(self):
        self._token = _active.set(self)
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        _active.reset(self._token)
        untyped: Any = super()
        untyped.__exit__(*exc)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function and record its result if it is a loss."""
        result = func(*args, **(kwargs or {}))
        if func in LOSS_FUNCTIONS:
            self.losses.append((LOSS_FUNCTIONS[func], result))
        return result

    def final(self) -> tuple[str, torch.Tensor]:
        """Return the only loss that feeds no other loss, with the name of its function.

        Raises:
            LossError: none or several remain.
        """
        traced = [(_torch.traced_node(value), name, value) for name, value in self.losses]
        # A loss of constants only is in no trace; marking one value twice is one loss.
        nodes = {node: (name, value) for node, name, value in traced if node is not None}
        feeding = ancestors(*nodes)
        remaining = [entry for node, entry in nodes.items() if node not in feeding]
        function = marked("").partition("(")[0]
        if not remaining:
            raise LossError(
                "Couldn't find a loss in graph! A training model computes its loss inside forward, "
                f"found no torch loss function and no {function}. Compute the loss in forward, or "
                f"wrap your own in {marked('loss')}."
            )
        if len(remaining) > 1:
            names = ", ".join(name for name, _ in remaining)
            raise LossError(
                "Multiple independent losses found in graph. Graph must have one final loss. "
                f"Wrap final graph loss in {function}. "
                f"Found {len(remaining)}: {names}."
            )
        return remaining[0]


aten = torch.ops.aten
# Operators that return the same value in another tensor.
_COPIES = (aten.clone.default, aten.alias.default, aten._to_copy.default)


def warn_of_other_losses(
    name: str, loss: torch.Tensor, outputs: Sequence[torch.Tensor], trained: Set[torch.fx.Node]
) -> None:
    """Warn once if forward returns a scalar that may be meant as a loss and is not trained."""
    node = _torch.traced_node(loss)
    if name == MARKED or node is None:
        return
    for output in outputs:
        other = _torch.traced_node(output)
        if other is None or other is node or not output.requires_grad or output.numel() != 1:
            continue
        advice = (
            f"Wrap the value to train in {marked('value')}, or return a detach() of what is only "
            "to be looked at."
        )
        beginning = f"Training follows {name} at {line_of(node)}"
        if _is_made_of(other, node, trained, returned={_torch.traced_node(o) for o in outputs}):
            warn_user(
                f"{beginning} alone, and not the value that forward makes of it at "
                f"{line_of(other)} and returns. {advice}",
                UserWarning,
            )
            return
        above = ancestors(other)
        if node not in above and other not in ancestors(node) and above & trained:
            warn_user(
                f"{beginning} alone, and not the value that forward computes beside it at "
                f"{line_of(other)} and returns. {advice}",
                UserWarning,
            )
            return


def _is_made_of(
    value: torch.fx.Node,
    loss: torch.fx.Node,
    trained: Set[torch.fx.Node],
    returned: Set[torch.fx.Node | None],
) -> bool:
    """Return whether a value is computed from the loss in a way that changes the gradient."""
    between = _made_of(loss) & {value, *_differentiable_ancestors(value)}
    if value not in between:
        return False
    if all(is_view(node) or is_getitem(node) or node.target in _COPIES for node in between):
        return False
    others = {i for node in between for i in node.all_input_nodes} - between - {loss}
    if any({other, *_differentiable_ancestors(other)} & trained for other in others):
        return True
    # A function of the loss alone, as its exponential, may be for people to read beside it.
    return loss not in returned


def _made_of(node: torch.fx.Node) -> set[torch.fx.Node]:
    def users(each: torch.fx.Node) -> list[torch.fx.Node]:
        return [user for user in each.users if user.target is not aten.detach.default]

    return {*traverse(users(node), users)}


def _differentiable_ancestors(node: torch.fx.Node) -> set[torch.fx.Node]:
    def inputs(each: torch.fx.Node) -> list[torch.fx.Node]:
        return [] if each.target is aten.detach.default else each.all_input_nodes

    return {*traverse(inputs(node), inputs)}


def warn_of_no_gradient(name: str, loss: torch.Tensor, trained: Set[torch.fx.Node]) -> None:
    """Warn that the loss, though computed from parameters, gives no parameter a gradient."""
    node = _torch.traced_node(loss)
    if node is None or not ancestors(node) & trained:
        return
    warn_user(
        f"Training changes nothing: no gradient flows from {name} at {line_of(node)} to the "
        "parameters that it is computed from. Look for detach() and torch.no_grad() on the way.",
        UserWarning,
    )


def warn_of_lost_state(reassigned: Iterable[tuple[Any, str, torch.Tensor, torch.Tensor]]) -> None:
    """Warn of attributes whose values forward updates at each call, as a program does not."""
    for owner, name, before, after in reassigned:
        node = _torch.traced_node(after)
        if node is None or not _reads(node, before):
            continue
        warn_user(
            f"forward computes a new value of {type(owner).__name__}.{name} from the old one at "
            f"{line_of(node)}. It is neither a parameter nor a buffer, so that every call of the "
            f'program starts from the value it has now. Use register_buffer("{name}", ...) in '
            f"__init__ and self.{name}.copy_(...) in forward.",
            UserWarning,
        )


def _reads(node: torch.fx.Node, tensor: torch.Tensor) -> bool:
    """Return whether a node is computed from a constant tensor."""
    mode: Any = _torch.get_proxy_mode()
    assert mode is not None, "no trace under way"
    with _torch.outside_the_trace(), _torch.without_torch_function_modes():
        memory = _torch.memory_of(tensor)
        for each in ancestors(node):
            value = getattr(mode.tracer.root, str(each.target)) if each.op == "get_attr" else None
            if isinstance(value, torch.Tensor) and _torch.memory_of(value) == memory:
                return True
    return False


def line_of(node: torch.fx.Node) -> str:
    """Format the user's source line of a node as ``FILE:LINE``."""
    frame = user_line(node.meta.get("stack_trace"))
    return f"{frame[0]}:{frame[1]}" if frame else "a line unknown"
