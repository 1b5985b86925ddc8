"""The programs of a compiled model, or at least their code, out of a file."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from abele.compile import keys, portable_executable
from abele.compile.build import BuildRecord
from abele.compile.executable import Executable
from abele.compile.serialization import first_difference
from abele.program import Program
from abele.step.config import StepConfig
from abele.storage.container import Container
from poptorch._compiled.forward import Traced
from poptorch._error import error
from poptorch._files.saved_file import meaning
from poptorch._values.stored_structure import structure_from

_ADVICE = "Build the wrapper with the model, options and optimizer that were used for the export."


class FromFile:
    """A file has the programs of a compiled model and their code; an ``Origin``.

    Args:
        file: the container, which is open while the model is compiled.
        retrace: forward is traced again, and has to give the programs of the file; otherwise
            these are used as they are.
    """

    def __init__(self, file: Container, *, retrace: bool):
        self._file, self._retrace = file, retrace
        with meaning(file.path):
            self._content = file.content["executable"]
            self._captured = portable_executable.captured_in(file, self._content)

    def traced(self, trace: Callable[[], Traced]) -> Traced:
        """Return the programs of the file.

        Raises:
            poptorch.Error: the module gives others.
        """
        if not self._retrace:
            with meaning(self._file.path):
                return Traced(self._captured, structure_from(self._file.content["outputs"]))
        here = trace()
        names = [list(captured.by_name) for captured in (self._captured, here.captured)]
        if names[0] != names[1]:
            raise _other(self._file, f"programs {names[0]} there, {names[1]} here")
        for there, program in zip(self._captured.programs, here.captured.programs, strict=True):
            different = first_difference(there, program)
            if different is not None:
                raise _other(self._file, different)
        return here

    def built(
        self, programs: Sequence[Program], config: StepConfig, *, in_stages: bool, **settings: Any
    ) -> tuple[Executable, BuildRecord]:
        """Return a session with the file's code, or compiled again where that does not fit."""
        del in_stages
        with meaning(self._file.path):
            return portable_executable.restore(
                self._file, self._content, programs, config, **settings
            )


def check_config(file: Container, config: StepConfig) -> None:
    """Refuses options that need other programs than those of the file.

    Raises:
        poptorch.Error: naming the options that differ.
    """
    here = json.loads(json.dumps(config.compile_fields()))
    with meaning(file.path):
        there = file.content["executable"]["key_parts"]["config"]
        different = keys.differences(there, here)
    if different:
        raise _other(file, "; ".join(different))


def _other(file: Container, what: str) -> Exception:
    return error(f"{file.path} holds the executable of another model: {what}. {_ADVICE}")
