"""A data loader whose batches are tensors with names."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from sambaflow.errors import UsageError
from sambaflow.samba.sambatensor import SambaTensor, from_torch_tensor


class SambaLoader:
    """A data loader that names the tensors of each batch, in order.

    Args:
        loader: any iterable with a length that yields tuples or lists of tensors.
        names: of the items that become inputs.
        function_hook: chooses or reshapes the items of a batch; returns a list.
        return_original_batch: yield pairs of the tensors and the batch as it came.
        hints: accepted.
    """

    def __init__(
        self,
        loader: Any,
        names: Sequence[str],
        function_hook: Callable[[Any], list[torch.Tensor]] | None = None,
        return_original_batch: bool = False,
        **hints: Any,
    ):
        del hints
        self.loader, self.names = loader, list(names)
        self.function_hook, self.return_original_batch = function_hook, return_original_batch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            tensors = self._named(batch)
            yield (tensors, batch) if self.return_original_batch else tensors

    def _named(self, batch: Any) -> tuple[SambaTensor, ...]:
        items = batch if self.function_hook is None else self.function_hook(batch)
        if isinstance(items, torch.Tensor):
            items = [items]
        if not isinstance(items, list | tuple) or len(items) != len(self.names):
            count = len(items) if isinstance(items, list | tuple) else type(items).__name__
            raise UsageError(
                f"SambaLoader was given names {', '.join(self.names)}, but a batch has {count} "
                "items. Choose the items by function_hook, which returns a list."
            )
        return tuple(
            from_torch_tensor(item, name=name, batch_dim=0)
            for item, name in zip(items, self.names, strict=True)
        )
