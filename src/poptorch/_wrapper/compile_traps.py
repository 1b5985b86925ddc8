"""Warnings of what compiling fixes, and of changes after wrapping that it misses."""

from collections.abc import Mapping
from typing import Any

import torch

from abele.capture.reachable import attributes_of
from abele.warn import warn_user

# What a module and its copy have in common, or what wrapping itself changes.
_SHARED = frozenset(vars(torch.nn.Module())) - {"training"}


class LateChanges:
    """Tells what was changed on a model between wrapping and compiling.

    Args:
        model: the user's, about to be wrapped.
    """

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._attributes = dict(attributes_of(model))
        # A module made by torch.compile keeps its mode in the module inside, not in an attribute.
        self._was_training = model.training
        self._modes = _modes_of(model)

    def warn(self, *, training: bool) -> None:
        """Warns of changes that the wrapper does not see, or compiles in.

        Args:
            training: whether the model was wrapped for training.
        """
        _warn_of_late_changes(self._model, self._attributes)
        _warn_of_late_mode(self._model, self._modes, self._was_training, training=training)


def _warn_of_late_changes(model: torch.nn.Module, before: Mapping[str, Any]) -> None:
    """Warns of attributes that were set on the user's module after it was wrapped.

    The wrapper runs a shallow copy that was made then. Submodules are the same objects, so that
    ``eval()`` reaches them but not the module itself.

    Args:
        model: the user's.
        before: its attributes when it was wrapped.
    """
    now = attributes_of(model)
    names = [
        name
        for name in {**before, **now}
        if name not in _SHARED and _is_change(before.get(name), now.get(name))
    ]
    if "training" in names and not _reads_mode(model):
        names.remove("training")
    if not names:
        return
    mode = "train" if model.training else "eval"
    advice = f" (model.{mode}() has reached its submodules only)" if "training" in names else ""
    warn_user(
        f"{model._get_name()} was changed after it was wrapped, before its first call: "
        f"{', '.join(names)}{advice}. The wrapper runs a copy of the attributes that the model had "
        "when it was wrapped, and does not see these. Change the model first, then wrap it.",
        UserWarning,
    )


def _modes_of(model: torch.nn.Module) -> dict[str, bool]:
    """Return the mode of each module that computes differently in training, by path."""
    return {
        path: child.training
        for path, child in model.named_modules()
        if child is not model and _reads_mode(child) and _drops_something(child)
    }


def _drops_something(module: torch.nn.Module) -> bool:
    """Return whether a module drops elements with a probability above zero."""
    return all(getattr(module, name, 1) != 0 for name in ("p", "dropout"))


def _warn_of_late_mode(
    model: torch.nn.Module, before: Mapping[str, bool], was_training: bool, *, training: bool
) -> None:
    """Warns that a model's parts were put into the other mode after it was wrapped.

    Parts are the same objects in the wrapper, and their mode at the first call is compiled in.

    Args:
        model: the user's.
        before: what ``_modes_of`` gave when it was wrapped.
        was_training: the model's own flag then.
        training: whether it was wrapped for training.
    """
    if model.training == was_training or model.training == training or _reads_mode(model):
        return  # of a model that reads the mode itself, _warn_of_late_changes speaks
    now = _modes_of(model)
    changed = [path for path, mode in now.items() if mode != training and before.get(path) != mode]
    if not changed:
        return
    call, mode = ("eval()", "evaluation") if training else ("train()", "training")
    other = "train()" if training else "eval()"
    warn_user(
        f"{model._get_name()}.{call} was called after the model was wrapped for "
        f"{'training' if training else 'inference'}, before its first call: {', '.join(changed)} "
        f"compute in {mode} mode at every call of the wrapper. Call {other} before the first "
        "call, or wrap the model after it is in the mode you want.",
        UserWarning,
    )


def _reads_mode(model: torch.nn.Module) -> bool:
    """Return whether a method of the model itself reads ``self.training``."""
    kinds = [kind for kind in type(model).__mro__ if kind is not torch.nn.Module]
    methods = [each for kind in kinds for each in vars(kind).values()]
    return any("training" in getattr(each, "__code__", _NO_CODE).co_names for each in methods)


_NO_CODE = (lambda: None).__code__


def _is_change(then: object, now: object) -> bool:
    if now is then:
        return False
    simple = (bool, int, float, str, bytes)
    if then is None and not isinstance(now, simple):
        return False  # something that is computed when it is first needed
    return not (isinstance(now, simple) and type(now) is type(then) and now == then)


def warn_of_autocast() -> None:
    """Warns that a program compiled under autocast always computes in its type."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            warn_user(
                f"The model is compiled under torch.autocast for {device}: its program computes in "
                f"{dtype} at every later call too, with autocast or without. Make the first call, "
                "or compile(), outside of autocast for a program in the types of the weights.",
                UserWarning,
            )
