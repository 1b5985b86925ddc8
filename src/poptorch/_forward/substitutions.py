"""Substitutes for functions of other packages, in place while forward is captured.

``poptorch_geometric`` registers substitutes for functions of PyTorch Geometric whose results have
shapes that depend on values.
"""

import contextlib
from typing import ClassVar, Protocol

from poptorch._error import error


class SubstitutionManager(Protocol):
    """Puts its substitutes in place, and takes them away again."""

    def replace(self) -> None:
        """Put the substitutes in place."""

    def restore(self) -> None:
        """Put what they replaced back."""


class _OverwriteContextManager:
    """The substitution managers that are registered, by the name that the original gives them.

    ``poptorch._poplar_executor`` only imports this class: a client executes that module again to
    register, which would make an empty list there.
    """

    _subsitution_manager_types: ClassVar[list[type[SubstitutionManager]]] = []

    def __enter__(self) -> "_OverwriteContextManager":
        with contextlib.ExitStack() as stack:
            for manager_type in self._subsitution_manager_types:
                manager = manager_type()
                stack.callback(manager.restore)  # also if only some are in place
                manager.replace()
            self._active = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._active.close()

    @classmethod
    def registerSubsitutionManager(cls, type: type[SubstitutionManager]) -> None:
        """Register a class whose substitutes are in place while forward is captured.

        Args:
            type: a class without arguments that has `replace` and `restore`; once is enough.

        Raises:
            poptorch.Error: it is no such class.
        """
        if not all(callable(getattr(type, name, None)) for name in ("replace", "restore")):
            raise error(
                f"registerSubsitutionManager takes a class with replace() and restore(), found "
                f"{type!r}."
            )
        if type not in cls._subsitution_manager_types:
            cls._subsitution_manager_types.append(type)
