"""Warnings of mistakes around wrapped models: late changes, autocast, and host training steps.

``executor.to(device)`` returns the plain module, as in the original, and a loop that goes on with
it trains on the host without a word. So each wrapped module has a watch (``HostTraining``). A step
is a forward outside the executor, with gradients enabled, after which a parameter gets a gradient.
The first one is announced with its line, and all are counted until the end of the process. Calls of
the executor pass none of this.
"""

import atexit
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from abele.capture.gradient_hooks import internal
from abele.capture.reachable import attributes_of
from abele.warn import user_line, warn_user
from poptorch._forward.running import capturing
from poptorch._logging import logger

# What a module and its copy have in common, or what wrapping itself changes.
_SHARED = frozenset(vars(torch.nn.Module())) - {"training"}
# Methods of a module that return the module, so that an assignment loses the executor.
_CASTS = ("to", "to_empty", "cpu", "cuda", "float", "double", "half", "bfloat16", "type")
_RETURN_SELF = frozenset((*_CASTS, "train", "eval", "requires_grad_", "apply", "share_memory"))
_seen: "list[HostTraining]" = []  # those that have counted something


class LateChanges:
    """Warns of changes to a model between wrapping and compiling.

    The wrapper runs a shallow copy of the model. Submodules are the same objects: ``eval()`` after
    wrapping reaches them but not the model itself, and their mode at the first call is compiled in.
    """

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._attributes = dict(attributes_of(model))
        # A module made by torch.compile keeps its mode in the module inside, not in an attribute.
        self._was_training = model.training
        self._modes = _modes_of(model)

    def warn(self, *, training: bool) -> None:
        """Warn of changed attributes that the wrapper ignores, and of changed submodule modes."""
        self._warn_of_attributes()
        model = self._model
        other_mode = model.training not in (self._was_training, training)
        if other_mode and not _reads_mode(model):  # else the attribute was warned of
            self._warn_of_modes(training=training)

    def _warn_of_attributes(self) -> None:
        """Warn of attributes set on the user's module after it was wrapped."""
        model, before, now = self._model, self._attributes, attributes_of(self._model)
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
            f"{', '.join(names)}{advice}. The wrapper runs a copy of the attributes that the "
            "model had when it was wrapped, and does not see these. Change the model first, then "
            "wrap it.",
            UserWarning,
        )

    def _warn_of_modes(self, *, training: bool) -> None:
        """Warn of submodules whose training mode now differs from the wrapper's."""
        now, before = _modes_of(self._model), self._modes
        changed = [path for path, mode in now.items() if mode not in (training, before.get(path))]
        if not changed:
            return
        call, mode = ("eval()", "evaluation") if training else ("train()", "training")
        other = "train()" if training else "eval()"
        warn_user(
            f"{self._model._get_name()}.{call} was called after the model was wrapped for "
            f"{'training' if training else 'inference'}, before its first call: "
            f"{', '.join(changed)} compute in {mode} mode at every call of the wrapper. Call "
            f"{other} before the first call, or wrap the model after it is in the mode you want.",
            UserWarning,
        )


def _modes_of(model: torch.nn.Module) -> dict[str, bool]:
    """Return the training flag of each submodule that computes differently in training, by path."""
    return {
        path: child.training
        for path, child in model.named_modules()
        if child is not model and _reads_mode(child)  # of those with a drop probability above zero
        if all(getattr(child, name, 1) != 0 for name in ("p", "dropout"))
    }


def _reads_mode(model: torch.nn.Module) -> bool:
    """Return whether a method of the model's own class reads ``self.training``."""
    kinds = [kind for kind in type(model).__mro__ if kind is not torch.nn.Module]
    methods = [each for kind in kinds for each in vars(kind).values()]
    codes = [each.__code__ for each in methods if hasattr(each, "__code__")]
    return any("training" in code.co_names for code in codes)


def _is_change(then: object, now: object) -> bool:
    if now is then:
        return False
    simple = (bool, int, float, str, bytes)
    if then is None and not isinstance(now, simple):
        return False  # something that is computed when it is first needed
    return not (isinstance(now, simple) and type(now) is type(then) and now == then)


def warn_of_autocast() -> None:
    """Warn if a model is compiled under autocast, whose dtype its program keeps."""
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            warn_user(
                f"The model is compiled under torch.autocast for {device}: its program computes in "
                f"{dtype} at every later call too, with autocast or without. Make the first call, "
                "or compile(), outside of autocast for a program in the types of the weights.",
                UserWarning,
            )


# -- training steps on the host ----------------------------------------------------------------


class HostTraining:
    """Counts training steps that a wrapped module runs on the host by mistake, and warns.

    Attributes:
        executor: a weak reference to the wrapper, which this object outlives.
        steps: number of steps on the host.
        target: compilation target of the wrapper, once known.
    """

    def __init__(self, executor: Any, name: str, options: Any):
        self.executor, self._name, self.options = weakref.ref(executor), name, options
        self.steps = 0
        self.target: str | None = None
        self._first = self._way = ""
        self._forward = ""  # line of a forward that no gradient has followed yet
        self._handles: list[RemovableHandle] = []

    def begin(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Watch plain parameters for gradients on the host, to detect training there."""
        self.end()
        if not self.options._host_training_warning:
            return
        for parameter in parameters:
            if parameter.requires_grad and parameter.is_leaf:
                register = parameter.register_post_accumulate_grad_hook
                self._handles.append(register(self._note_gradient))

    def end(self) -> None:
        """Stop watching parameters for training on the host."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._forward = ""

    def note_method(self, name: str) -> None:
        """Record that a program got the plain module from a method of the executor."""
        if name in _RETURN_SELF and not self._way:
            self._way = f"executor.{name}() returned the plain module at {user_line()}"

    def note_forward(self) -> None:
        """Record that the model's forward runs on the host, outside of a capture."""
        if self._handles and torch.is_grad_enabled() and capturing() is None:
            # The line is wanted once; finding it takes longer than noting that there was one.
            self._forward = user_line() if not self.steps else "later"

    @internal
    def _note_gradient(self, parameter: torch.Tensor) -> None:
        del parameter
        if self._forward:
            self._count()

    def _count(self) -> None:
        line, self._forward = self._forward, ""
        executor = self.executor()
        if executor is None and self.target is not None:
            return  # it has trained on its device and is gone: the rest is the host's
        self.steps += 1
        if self.steps == 1:
            self._first = line
            _seen.append(self)
            logger.warning(
                "%s Call what poptorch.trainingModel returned, or destroy() it to go on with the "
                "host alone; options.hostTrainingWarning(False) turns this warning off.",
                self.sentence(),
            )

    def sentence(self) -> str:
        """Describe the training steps that ran on the host."""
        steps = "A training step" if self.steps == 1 else f"{self.steps} training steps"
        target = "the device" if self.target is None else f"target {self.target}"
        why = f", since {self._way}" if self._way else ""
        return (
            f"{steps} of {self._name} ran on the host, not on {target}{why}. Forward was called "
            f"outside the executor, with gradients, at {self._first}."
        )


def _summarise() -> None:
    """Log the final counts of host training steps at the end of the process."""
    for watch in _seen:
        logger.warning("%s", watch.sentence())


atexit.register(_summarise)
