"""Connecting instances, calls on selected instances, and the replacement of Horovod."""

import importlib.util
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import ParamSpec, TypeVar

from popdist import _environment
from popdist._environment import Error

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def init() -> None:
    """Connect this instance to all others; call it once, before other functions of popdist.

    Instances meet where MASTER_ADDR and MASTER_PORT say, which poprun sets, and compare their
    versions. Later calls do nothing. A single instance has nobody to connect with, so that nothing
    happens, with or without poprun. Afterwards programs can also use `torch.distributed` itself.

    Differs from the original: a wrapper that trains connects by itself where this was not called.

    Raises:
        popdist.Error: The environment contradicts itself or does not say where to meet; an
            instance does not come within 60 s (ABELE_RANK_TIMEOUT), or runs other versions.
    """
    _environment.check()
    count = _environment.getNumInstances()
    if count > 1:
        # Here, because programs that only ask which instance they are need no torch.
        from popdist import poptorch

        poptorch.connect(_environment.getInstanceIndex(), count)


def execute_on_instances(
    instances: Collection[int],
    func: Callable[_Arguments, _Result],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> _Result | None:
    """Call a function on selected instances only, for example for saving or logging.

    Nobody waits for the others.

    Args:
        instances: Numbers of these instances, such as ``{0}``; those that no instance has are
            ignored, so that a program also runs with fewer instances.
        func: Called with the remaining arguments.
        *args: Its positional arguments.
        **kwargs: Its named arguments.

    Returns:
        What the function returns; None on the other instances.

    Raises:
        popdist.Error: `instances` is a number, or the environment does not tell this instance.
    """
    if isinstance(instances, int):
        raise Error(f"execute_on_instances takes a set of instances: {{{instances}}}")
    return func(*args, **kwargs) if _environment.getInstanceIndex() in instances else None


_FOLDER = Path(__file__).parent / "_horovod"


class StandInFinder(MetaPathFinder):
    """The import finder of popdist's replacement of `horovod`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Return the spec of the `horovod` replacement; None for every other module name."""
        del path, target
        if fullname != "horovod":
            return None
        logging.getLogger("popdist").info(
            "Horovod is not installed: popdist provides horovod.torch, for metrics and weights."
        )
        return importlib.util.spec_from_file_location(
            fullname, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
        )


def install_horovod() -> None:
    """Append the finder of the `horovod` replacement to `sys.meta_path`."""
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.append(StandInFinder())
