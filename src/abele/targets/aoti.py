"""What ``cpu`` and ``cuda`` share: ahead-of-time compilation through AOTInductor.

A program goes in, a package goes out: one file with the compiled step that updates its inputs in
place and loads without a compiler.
"""

from __future__ import annotations

import os
from typing import Any, cast

import torch

from abele import _torch
from abele.errors import CompilerError
from abele.ops.value_check import raising_failures
from abele.program import Program, Slot
from abele.storage import temporary
from abele.targets import released as _released
from abele.targets.base import Compiled, Run
from abele.targets.quiet import quiet_compiler
from abele.warn import warn_user


def compile_program(
    program: Program, device: torch.device, options: dict[str, Any]
) -> tuple[Compiled, bytes]:
    """Compiles ``program`` for ``device`` and loads the result.

    Raises:
        CompilerError: the native compiler failed; its output is in ``log``.
    """
    inputs = [_example(slot, device) for slot in program.inputs]
    with temporary.folder() as folder:
        path = os.path.join(folder, "program.pt2")
        try:
            with _torch.TRACING, quiet_compiler():
                _torch.aoti_compile(program.graph, inputs, path, options)
        except _torch.CompileFailure as error:
            raise CompilerError(
                f"Program {program.name!r} could not be compiled: the C++ compiler failed.",
                log=str(error),
            ) from None
        with open(path, "rb") as file:
            payload = file.read()
    return load_program(payload, device), payload


def load_program(payload: bytes, device: torch.device) -> Compiled:
    """Restores a compiled program from its package."""
    with temporary.folder() as folder:
        path = os.path.join(folder, "program.pt2")
        with open(path, "wb") as file:
            file.write(payload)
        # The loader unpacks the package before it returns, so the folder may go.
        index = cast("int | None", device.index)  # of a device without number it is None
        run = _torch.aoti_load(path, -1 if index is None else index)
    run = raising_failures(run)
    return Package(run, payload) if device.type == "cpu" else Compiled(run, payload)


class Package(Compiled):
    """A compiled program of the host."""

    def released(self) -> Run:
        """The code under its C interface, which does not hold the interpreter's lock.

        The loader of torch holds it from beginning to end. What calls operators that only the
        loader can call stays with the loader, and a warning says so.
        """
        run = _released.load(self.payload)
        if run is None:
            warn_user(
                "A stage's compiled code calls operators that need torch's loader, which holds "
                "Python's lock: no other stage works while it runs. Results are the same.",
                UserWarning,
            )
        return run or self.run


def _example(slot: Slot, device: torch.device) -> torch.Tensor:
    return torch.zeros(slot.shape, dtype=slot.dtype, device=device)
