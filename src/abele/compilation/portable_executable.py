"""Saved models: programs with their compiled code, restored or compiled again elsewhere.

The file carries the programs as captured, so that a machine for which its code was not made can
compile them again without the model's source. Which of the two happened is said.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from abele.capture import Captured
from abele.compilation import executable_file, keys, verdict
from abele.compilation.build import BuildRecord, Progress, build
from abele.compilation.executable import Executable, ExecutableSource
from abele.compilation.serialization import from_members, to_members
from abele.compilation.tiers import Gather
from abele.errors import ForeignExecutable, SerializationError
from abele.program import Program
from abele.step.config import StepConfig
from abele.step.loss_scaling import AutomaticScaling
from abele.step.update_rules import RULES, Group, UpdateRule
from abele.storage.container import Container
from abele.storage.values import decode, encode
from abele.targets import Target
from abele.warn import warn_user

# Classes of the parts of an update rule, by their tag in JSON.
_PARTS: dict[str, type] = {"group": Group, "automatic_scaling": AutomaticScaling}


class RecompiledWarning(UserWarning):
    """A saved model's code does not fit this machine and was compiled again."""


def pack(captured: Captured, made: Executable) -> tuple[dict[str, Any], dict[str, Any]]:
    """Serialize captured programs and their executable as a container's manifest and members.

    Raises:
        SerializationError: a program that cannot be stored; names the operation.
    """
    # The compiled programs of a pipeline are parts of the captured ones.
    of_code, code = executable_file.to_container(made)
    outputs = {f"outputs/{index}": value for index, value in captured.constants.items()}
    content = {
        "programs": [program.name for program in captured.programs],
        "digests": {program.name: program.fingerprint() for program in captured.programs},
        "captured": {name: encode(getattr(captured, name)) for name in _plain_fields()},
        **of_code,
    }
    return content, {**to_members(captured.programs), **code, **outputs}


def captured_in(file: Container, content: Mapping[str, Any]) -> Captured:
    """Read the captured programs of a saved model's container.

    Raises:
        CorruptExecutable: a member is damaged, or a program is not the one that was stored.
        SerializationError: a program calls an operator that is unknown here.
    """
    programs = from_members(file, content["digests"])
    outputs = {int(index): value for index, value in file.tensors("outputs/").items()}
    # A file that is older than one of the fields lacks it.
    stored = content["captured"]
    plain = {name: decode(stored[name]) for name in _plain_fields() if name in stored}
    return Captured(programs=programs, constants=outputs, **plain)


def _plain_fields() -> list[str]:
    """Return the fields of ``Captured`` that are neither programs nor tensors."""
    names = [field.name for field in dataclasses.fields(Captured)]
    return [name for name in names if name not in ("programs", "constants")]


def rule_data(rule: UpdateRule) -> dict[str, Any]:
    """Serialize the update rule of an optimizer as JSON values."""

    def part(value: Any) -> dict[str, Any]:
        for tag, kind in _PARTS.items():
            if isinstance(value, kind):
                return {tag: _fields(value, part)}
        raise SerializationError(f"{value!r} in an update rule cannot be stored.")

    return _fields(rule, part)


def _fields(value: Any, other: Callable[[Any], Any]) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(value))
    return {name: encode(getattr(value, name), other) for name in names}


def rule_from(data: Mapping[str, Any]) -> UpdateRule:
    """Restore an optimizer's update rule from the JSON values of ``rule_data``.

    Raises:
        SerializationError: the data is not of a rule that exists.
    """

    def maker(kind: type) -> Callable[[Mapping[str, Any]], Any]:
        return lambda fields: kind(**{name: decode(value) for name, value in fields.items()})

    makers = {tag: maker(kind) for tag, kind in _PARTS.items()}
    rule = UpdateRule(**{name: decode(value, makers) for name, value in data.items()})
    if rule.kind not in RULES:
        raise SerializationError(f"There is no update rule {rule.kind!r}, only {sorted(RULES)}.")
    return rule


def restore(
    file: Container,
    content: Mapping[str, Any],
    programs: Sequence[Program],
    config: StepConfig,
    *,
    target: Target | None = None,
    cache: ExecutableSource | None = None,
    log_folder: str | Path | None = None,
    progress: Progress = lambda stage, fraction: None,
    gather: Gather | None = None,
) -> tuple[Executable, BuildRecord]:
    """Build an executable from a container's code, or from its programs if the code does not fit.

    Warns with RecompiledWarning, saying why, if the code of the file was not used.

    Raises:
        TargetError: nothing here can run or compile the programs.
    """
    source = ContainerFirst(file, content, cache)
    made, record = build(
        programs,
        config,
        target=target,
        cache=source,
        log_folder=log_folder,
        progress=progress,
        gather=gather,
    )
    reason = source.problem or source.why_other(made.key_parts)
    if reason:
        origin = "taken from the cache" if record.cache == "hit" else "made again"
        warn_user(
            f"The compiled code in {file.path.name} does not fit here ({reason}). It was {origin} "
            f"from the programs in the file, for target {record.target!r}.",
            RecompiledWarning,
        )
    return made, record


class ContainerFirst:
    """A source of executables that looks in a container first, then in another source.

    Args:
        file: the container.
        content: what ``pack`` returned for its manifest.
        behind: the other source, if there is one.

    Attributes:
        problem: why code that fits was not used; empty if it was, or did not fit.
    """

    def __init__(
        self, file: Container, content: Mapping[str, Any], behind: ExecutableSource | None
    ):
        self._file, self._content, self._behind = file, content, behind
        self.problem = ""

    def load(
        self, programs: Sequence[Program], parts: Mapping[str, Any], target: Target
    ) -> Executable | None:
        """Return the container's executable if its key parts match, else the other source's."""
        if not self.problem and not self.why_other(parts):
            try:
                made = executable_file.from_container(
                    self._file, self._content, programs, parts, target
                )
                return made if made.is_proven() else self._proven_behind(programs, parts, made)
            except (ForeignExecutable, RuntimeError) as error:
                self.problem = str(error)
        return None if self._behind is None else self._behind.load(programs, parts, target)

    def _proven_behind(
        self, programs: Sequence[Program], parts: Mapping[str, Any], made: Executable
    ) -> Executable:
        """Return an executable with this machine's verdict, or the other source's proven copy."""
        known = verdict.recorded(made.machine())
        if known is not None or self._behind is None:
            return made if known is None else dataclasses.replace(made, verdict=known)
        kept = self._behind.load(programs, parts, made.target)
        return kept if kept is not None and kept.is_proven() else made

    def why_missing(self, parts: Mapping[str, Any]) -> str:
        """Return why the container's code was not used."""
        return f"{self._file.path} holds other code: {self.why_other(parts) or self.problem}"

    def why_other(self, parts: Mapping[str, Any]) -> str:
        """Return the differing key parts of the container's code."""
        return keys.why_other(self._content["key_parts"], parts)

    def only_one(
        self, key: str, waiting: Callable[[], None]
    ) -> contextlib.AbstractContextManager[bool]:
        """Keep other processes from compiling the executable that the other source will store."""
        if self._behind is None:
            return contextlib.nullcontext(False)
        return self._behind.only_one(key, waiting)

    def store(self, made: Executable) -> bool:
        """Store compiled code in the other source; without another source, only the verdict."""
        if self._behind is not None:
            return self._behind.store(made)
        if made.verdict is not None:
            verdict.record(made.verdict)
        return False
