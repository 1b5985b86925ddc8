"""Warnings of what a program does not train or keep although forward looks as if it did.

The loss is found by its operator. A value that forward makes of the loss, or beside it, has no part
in training; whoever wants it there marks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

import torch

from abele import _torch
from abele.capture.losses import MARKED, marked
from abele.program import ancestors, is_getitem, is_view
from abele.program.printing import user_line
from abele.warn import warn_user

aten = torch.ops.aten
# The same value in another tensor.
_COPIES = (aten.clone.default, aten.alias.default, aten._to_copy.default)


def warn_of_other_losses(
    name: str, loss: torch.Tensor, outputs: Sequence[torch.Tensor], trained: Set[torch.fx.Node]
) -> None:
    """Warn once if forward returns a number that training could follow and does not."""
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
    seen: set[torch.fx.Node] = set()
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user not in seen and user.target is not aten.detach.default:
                seen.add(user)
                stack.append(user)
    return seen


def _differentiable_ancestors(node: torch.fx.Node) -> set[torch.fx.Node]:
    seen: set[torch.fx.Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current.target is aten.detach.default:
            continue
        new = [each for each in current.all_input_nodes if each not in seen]
        seen.update(new)
        stack += new
    return seen


def warn_of_no_gradient(name: str, loss: torch.Tensor, trained: Set[torch.fx.Node]) -> None:
    """Warn that no gradient reaches any parameter, if the loss is computed from one."""
    node = _torch.traced_node(loss)
    if node is None or not ancestors(node) & trained:
        return
    warn_user(
        f"Training changes nothing: no gradient flows from {name} at {line_of(node)} to the "
        "parameters that it is computed from. Look for detach() and torch.no_grad() on the way.",
        UserWarning,
    )


def warn_of_lost_state(reassigned: Iterable[tuple[Any, str, torch.Tensor, torch.Tensor]]) -> None:
    """Warn of attributes from which forward computes their next value."""
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
    """``FILE:LINE`` of the user's source that made a node."""
    frame = user_line(node.meta.get("stack_trace"))
    return f"{frame[0]}:{frame[1]}" if frame else "a line unknown"
