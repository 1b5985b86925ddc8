"""A compiled model whose programs, or at least whose code, come out of a file."""

import json
from typing import Any

import torch

from abele.capture import Captured
from abele.compile import executable, portable_executable
from abele.compile.build import BuildRecord
from abele.compile.executable import Executable
from abele.compile.serialization import first_difference
from abele.step.config import StepConfig
from abele.storage.container import Container
from poptorch._compiled.model import CompiledModel
from poptorch._error import error
from poptorch._files.saved_file import meaning
from poptorch._values.stored_structure import structure_from

_ADVICE = "Build the wrapper with the model, options and optimizer that were used for the export."


class FromFile(CompiledModel):
    """A compiled model that a file restores.

    Args:
        arguments: those of ``CompiledModel``.
        file: the open container.
        retrace: forward is traced again, and has to give the programs of the file; otherwise
            these are used as they are.
    """

    def __init__(self, *arguments: Any, file: Container, retrace: bool):
        self._file, self._retrace = file, retrace
        with meaning(file.path):
            self._content = file.content["executable"]
            self._stored = portable_executable.captured_in(file, self._content)
        super().__init__(*arguments)
        del self._file, self._stored  # the file is about to be closed

    def _capture(self, examples: list[torch.Tensor], name_modules: bool) -> Captured:
        if not self._retrace:
            with meaning(self._file.path):
                self._outputs = structure_from(self._file.content["outputs"])
            return self._stored
        found = super()._capture(examples, name_modules)
        names = [list(captured.by_name) for captured in (self._stored, found)]
        if names[0] != names[1]:
            raise _other(self._file, f"programs {names[0]} there, {names[1]} here")
        for there, here in zip(self._stored.programs, found.programs, strict=True):
            different = first_difference(there, here)
            if different is not None:
                raise _other(self._file, different)
        return found

    def _build(self, **settings: Any) -> tuple[Executable, BuildRecord]:
        with meaning(self._file.path):
            return portable_executable.restore(
                self._file, self._content, self._programs(), self.config, **settings
            )


def check_config(file: Container, config: StepConfig) -> None:
    """Refuses options that need other programs than those of the file.

    Raises:
        poptorch.Error: naming the options that differ.
    """
    here = json.loads(json.dumps(config.compile_fields()))
    different = executable.differences(file.content["executable"]["key_parts"]["config"], here)
    if different:
        raise _other(file, "; ".join(different))


def _other(file: Container, what: str) -> Exception:
    return error(f"{file.path} holds the executable of another model: {what}. {_ADVICE}")
