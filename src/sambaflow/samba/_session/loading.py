"""From a PEF to a model on the device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from abele.capture import Captured
from abele.capture.sections import Output, Sectioned
from abele.compile import portable_executable
from abele.compile.serialization import first_difference
from abele.errors import CorruptExecutable, SerializationError
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.storage.container import Container
from abele.storage.values import decode
from sambaflow.errors import PefDamagedError, PefMismatchError
from sambaflow.samba._calls import arguments
from sambaflow.samba._calls import optimizers as _optimizers
from sambaflow.samba._compile import pef as _pef
from sambaflow.samba._compile.compiling import check_indices, rule_of, traced_with
from sambaflow.samba._session.loaded import LoadedGraph
from sambaflow.samba.sambatensor import SambaTensor


def load_model(
    model: torch.nn.Module,
    inputs: Any,
    optimizers: Any,
    pef: str | os.PathLike[str],
    loss_indices: Sequence[int] | None,
) -> LoadedGraph:
    """Load a compiled file; see ``SambaSession.trace_graph``."""
    named, keywords = arguments.named_inputs(inputs)
    check_indices(loss_indices)
    listed = _optimizers.as_list(optimizers)
    with _pef.opened(pef) as file:
        rule = rule_of(model, optimizers, inference=not listed)
        described = _pef.interface(model, named, keywords, rule, loss_indices)
        _pef.check(file.path, file.content["interface"], described)
        return _load(file, model, named, keywords, rule, listed)


def _load(
    file: Container,
    model: torch.nn.Module,
    named: Mapping[str, SambaTensor],
    keywords: Sequence[str],
    rule: UpdateRule | None,
    optimizers: Sequence[torch.optim.Optimizer],
) -> LoadedGraph:
    content = file.content
    fused_only = bool(content["about"]["fused_only"])
    losses = content["interface"]["loss_indices"]
    here = traced_with(model, named, keywords, rule, losses, fused_only=fused_only)
    captured = _same_as_stored(file, content["executable"], here.captured)
    outputs = tuple(
        Output(
            shape=tuple(each["shape"]),
            dtype=decode(each["dtype"]),
            differentiable=each["differentiable"],
            loss=each["loss"],
        )
        for each in content["outputs"]
    )
    traced = Sectioned(captured=captured, outputs=outputs, starts=tuple(content["starts"]))
    config = StepConfig(training=rule is not None)
    made, record = portable_executable.restore(
        file, content["executable"], captured.programs, config
    )
    return LoadedGraph(model, named, optimizers, rule, traced, made, record, file.path)


def _same_as_stored(file: Container, packed: Mapping[str, Any], here: Captured) -> Captured:
    """Return this process's capture if the file has the same program.

    The file's programs are read only to say how they differ: that takes as long as capturing.
    """
    try:
        for name in file.names:
            file.read(name)  # checks it
        digests = {program.name: program.fingerprint() for program in here.programs}
        if packed.get("digests") == digests:
            return here
        if packed["programs"] != list(here.by_name):
            raise PefMismatchError(
                f"{file.path} holds programs {', '.join(packed['programs'])}, this model makes "
                f"{', '.join(here.by_name)}. Compile it again."
            )
        different = [
            first_difference(program, here.by_name[program.name])
            for program in portable_executable.captured_in(file, packed).programs
        ]
        if not any(different):
            return here  # the file is of an older release, whose digests were of another kind
    except (CorruptExecutable, SerializationError) as error:
        raise PefDamagedError(
            f"{file.path} is damaged: {error} Compile the program again."
        ) from error
    raise PefMismatchError(
        f"{file.path} was compiled for another forward or other constants: "
        f"{next(filter(None, different))}. Run the model that was compiled, or compile this one."
    )
