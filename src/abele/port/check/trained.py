"""What a plain script trains: one model for each set of modules whose losses its optimizers use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from abele.port.check.channel import BUFFER, PARAMETER
from abele.port.check.watch import LinesOfParameters

_MOST_NAMES = 3
_Value = TypeVar("_Value")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backward:
    """A call of backward.

    Attributes:
        losses: numbers of the tensors that it began from.
        leaves: what they were differentiated by.
        roots: the modules that were called since the call before.
        inputs: of these modules.
        line: the user's line that made the call.
    """

    losses: tuple[float, ...]
    leaves: tuple[torch.Tensor, ...]
    roots: tuple[torch.nn.Module, ...]
    inputs: tuple[dict[str, Any], ...]
    line: str

    def reaches(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether it gives one of these a gradient."""
        wanted = set(map(id, tensors))
        return any(id(leaf) in wanted for leaf in self.leaves)


class Trained:
    """A model with its tensors.

    Args:
        number: in the order of first updates.

    Attributes:
        number: as given.
        tensors: parameters and buffers by name.
        kinds: which of the two they are.
    """

    def __init__(self, number: int):
        self.number = number
        self.tensors: dict[str, torch.Tensor] = {}
        self.kinds: dict[str, str] = {}
        self._roots: list[torch.nn.Module] = []

    def consists_of(self, roots: Iterable[torch.nn.Module]) -> bool:
        """Whether these are its modules."""
        return set(map(id, self._roots)) == set(map(id, roots))

    def add(self, calls: Sequence[Backward]) -> bool:
        """Add what took part in these calls, and say whether something is new."""
        before = len(self.tensors)
        new = not before
        for root in unique(root for call in calls for root in call.roots):
            if not any(each is root for each in self._roots):
                self._roots.append(root)
                self._add_module(root)
        # Later, inputs that are differentiated by would be among them.
        reached = unique(leaf for call in calls for leaf in call.leaves) if new else []
        for number, leaf in enumerate(reached):
            self._add(f"tensor{number}", "tensor", leaf, PARAMETER)
        return len(self.tensors) > before

    def parameters(self) -> dict[str, torch.Tensor]:
        """Those of its tensors that are parameters."""
        return {name: t for name, t in self.tensors.items() if self.kinds[name] == PARAMETER}

    def name(self, updated: Sequence[torch.Tensor]) -> str:
        """The classes of the modules that have tensors which are updated; of all if none has."""
        wanted = set(map(id, updated))
        named = [
            root for root in self._roots if any(id(each) in wanted for each in root.parameters())
        ]
        classes = [type(root).__name__ for root in named or self._roots]
        more = ", ..." if len(classes) > _MOST_NAMES else ""
        return ", ".join(classes[:_MOST_NAMES]) + more

    def lines(self, known: LinesOfParameters) -> dict[str, str]:
        """The user's lines that made its tensors."""
        return {name: known.of(tensor) for name, tensor in self.tensors.items()}

    def _add_module(self, module: torch.nn.Module) -> None:
        prefix = type(module).__name__
        for name, tensor in module.named_parameters():
            self._add(name, prefix, tensor, PARAMETER)
        for name, tensor in module.named_buffers():
            self._add(name, prefix, tensor, BUFFER)

    def _add(self, name: str, prefix: str, tensor: torch.Tensor, kind: str) -> None:
        """Add a tensor by a name that no other one has."""
        if any(each is tensor for each in self.tensors.values()):
            return
        unused, number = name, 1
        while unused in self.tensors:
            unused = f"{prefix}.{name}" if number == 1 else f"{prefix}{number}.{name}"
            number += 1
        self.tensors[unused], self.kinds[unused] = tensor, kind


def unique(values: Iterable[_Value]) -> list[_Value]:
    """Each object once, in order."""
    return list({id(value): value for value in values}.values())


def taking_part(
    called: Sequence[torch.nn.Module], reached: Sequence[torch.Tensor]
) -> list[torch.nn.Module]:
    """The modules that a loss may come from, of those that were called before it.

    One that was evaluated with gradients has some, but not of this loss; a frozen one has none.
    """
    wanted = set(map(id, reached))

    def takes_part(root: torch.nn.Module) -> bool:
        parameters = [*root.parameters()]
        return any(id(each) in wanted for each in parameters) or not any(
            each.requires_grad for each in parameters
        )

    roots = unique(called)
    return [root for root in roots if takes_part(root)] or roots


def leaves(losses: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that losses are differentiated by, in the order in which they are reached."""
    waiting: list[Any] = [loss.grad_fn for loss in losses]
    seen: set[Any] = set()
    reached: list[torch.Tensor] = []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            reached.append(node.variable)
        waiting += [source for source, _ in reversed(node.next_functions)]
    return reached
