"""A model that came out of a file: its tensors under their names, without its Python class."""

import inspect
from collections.abc import Iterator
from typing import Any, Self

import torch

from poptorch._error import error
from poptorch._files.stored_forward import RestoredForward, StoredForward


class RestoredModule(torch.nn.Module):
    """Modules restored from a file, without the user's classes.

    A tree of modules that holds parameters and buffers under the names they had, so that
    ``state_dict()``, ``parameters()`` and ``named_buffers()`` work, tied tensors stay tied, and the
    user's own class takes the state with ``load_state_dict``. Called, it runs forward as the file
    has it, in training or evaluation mode and with gradients, on the host or in another wrapper.
    Only the whole tree has a forward; arguments have the shapes of one micro-batch.
    """

    def __init__(self, kind: str = "Module"):
        super().__init__()
        self._restored_kind = kind

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Not available for a part of the model; the root has one from the file.

        Raises:
            poptorch.Error: always; says what to do instead.
        """
        del args, kwargs
        raise error(
            f"This {self._restored_kind} is a part of a model that came from a file without its "
            "Python class, and only the whole model can be called. Call the model that it is a "
            "part of, or pass poptorch.load(..., model=YourModel())."
        )

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the model as its class did, or of a submodule with its children.

        Args:
            mode: training, or evaluation.

        Returns:
            The module itself.
        """
        forward = self.__dict__.get("forward")
        flags = None if forward is None else forward.stored.flags_after(mode)
        super().train(mode)
        if flags is not None:
            children = self.named_modules(remove_duplicate=False)
            for (_, child), flag in zip(children, flags, strict=True):
                child.training = flag
        return self

    def _get_name(self) -> str:
        return f"{type(self).__name__}:{self._restored_kind}"


def module_data(module: torch.nn.Module) -> dict[str, Any]:
    """Return the tree of a module as JSON, with class names and tied tensors."""
    owners: dict[int, str] = {}
    data: dict[str, Any] = {"modules": [], "parameters": [], "buffers": []}
    for path, child in module.named_modules(remove_duplicate=False):
        kind = getattr(child, "_restored_kind", type(child).__name__)
        data["modules"].append([path, kind, child.training])
        for name, key, value in _tensors_of(path, child, "_parameters"):
            first = owners.setdefault(id(value), name)
            data["parameters"].append([path, key, first, value.requires_grad])
        for name, key, value in _tensors_of(path, child, "_buffers"):
            first = owners.setdefault(id(value), name)
            persistent = key not in child._non_persistent_buffers_set
            data["buffers"].append([path, key, first, persistent])
    return data


def _tensors_of(path: str, module: torch.nn.Module, kind: str) -> Iterator[tuple[str, str, Any]]:
    # Through __dict__: wrapped modules intercept attribute reads to fetch weights.
    for key, value in module.__dict__[kind].items():
        if value is not None:
            yield f"{path}.{key}" if path else key, key, value


def module_from(
    data: dict[str, Any],
    params: dict[str, torch.Tensor],
    buffers: dict[str, torch.Tensor],
    signature: inspect.Signature,
    forward: StoredForward,
) -> RestoredModule:
    """Build the module tree of ``module_data`` around these tensors.

    Args:
        data: what ``module_data`` returned.
        params: parameters under the first of their names.
        buffers: buffers likewise.
        signature: that of the user's ``forward``.
        forward: what the file has of it.
    """
    root, *others = data["modules"]
    tree = {"": RestoredModule(root[1])}
    for path, kind, _ in others:
        parent, _, key = path.rpartition(".")
        tree[path] = RestoredModule(kind)
        tree[parent].add_module(key, tree[path])
    trained: dict[str, torch.nn.Parameter] = {}
    for path, key, first, requires_grad in data["parameters"]:
        if first not in trained:
            trained[first] = torch.nn.Parameter(params[first], requires_grad=requires_grad)
        tree[path].register_parameter(key, trained[first])
    for path, key, first, persistent in data["buffers"]:
        tree[path].register_buffer(key, buffers[first], persistent=persistent)
    for path, _, training in data["modules"]:
        tree[path].training = training
    tree[""].forward = RestoredForward(tree[""], signature, forward)
    return tree[""]


def stored_forward(module: torch.nn.Module) -> StoredForward | None:
    """Return the stored forward of a module from a file; None for others."""
    forward = module.__dict__.get("forward")
    return forward.stored if isinstance(forward, RestoredForward) else None
