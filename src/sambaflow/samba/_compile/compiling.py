"""From a model to a PEF."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from abele.capture.sections import Sectioned
from abele.compile.build import build
from abele.errors import AbeleError, TargetError
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.storage import atomic
from abele.storage.files import why_no_folder_name
from abele.trace.module_state import parameter_names
from sambaflow.errors import GraphError, UsageError
from sambaflow.samba._calls import arguments
from sambaflow.samba._calls import optimizers as _optimizers
from sambaflow.samba._calls.messages import say, say_traced
from sambaflow.samba._compile import fitting
from sambaflow.samba._compile import pef as _pef
from sambaflow.samba._compile.sections import trace_model
from sambaflow.samba.sambatensor import SambaTensor


def compile_model(
    model: torch.nn.Module,
    inputs: Any,
    optimizers: Any,
    name: str | None,
    settings: Mapping[str, Any],
    pef_metadata: Mapping[str, Any] | None,
    loss_indices: Sequence[int] | None,
    *,
    inference: bool,
    fused_only: bool,
) -> Path:
    """Write a compiled file; see ``SambaSession.compile``."""
    named, keywords = arguments.named_inputs(inputs)
    check_indices(loss_indices)
    rule = rule_of(model, optimizers, inference=inference)
    path = _destination(name or type(model).__name__.lower(), settings)
    log = path.with_suffix(".samba.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"Compiling {name or type(model).__name__}; the log goes to {log}")
    described = _pef.interface(model, named, keywords, rule, loss_indices)
    started = time.perf_counter()
    traced = traced_with(model, named, keywords, rule, loss_indices, fused_only=fused_only)
    say_traced(traced, time.perf_counter() - started)
    fitting.answer_if_asked(traced, model, named)
    with _graph_errors():
        config = StepConfig(training=rule is not None)
        made, record = build(traced.captured.programs, config, log_folder=path.parent)
        seconds = record.seconds.get("compile", 0.0)
        say(f"Compiled for target {record.target!r} in {seconds:.1f} s")
        about = _about(name, settings, pef_metadata, record.target, fused_only=fused_only)
        _pef.write(path, traced, made, described, about)
    text = "\n\n".join(program.text() for program in made.programs)
    atomic.write_text(log, text)
    size = path.stat().st_size / 2**20
    say(f"PEF file {path} created, {size:.2f} MiB, executable {record.executable[:12]}")
    say("Compilation succeeded.")
    return path


def check_indices(indices: Any) -> None:
    """Refuses ``loss_indices`` that are no list of different positions.

    Raises:
        UsageError: says what was given.
    """
    if indices is None:
        return
    needed = "a list of positions of outputs"
    arguments.check("loss_indices", indices, (list, tuple), needed)
    for index in indices:
        arguments.check("An item of loss_indices", index, int, "the position of an output")
    if len(set(indices)) < len(indices):
        raise UsageError(f"loss_indices {list(indices)} names an output twice. Name each once.")


def rule_of(model: torch.nn.Module, optimizers: Any, *, inference: bool) -> UpdateRule | None:
    """Return the update rule of the optimizers; None for inference.

    Raises:
        UsageError: optimizers that cannot be compiled, or one for inference.
    """
    listed = _optimizers.as_list(optimizers)
    if inference and listed:
        raise UsageError(
            "An optimizer was given for inference. Pass None, or compile without --inference."
        )
    return _optimizers.to_rule(listed, parameter_names(model))


@contextlib.contextmanager
def _graph_errors() -> Iterator[None]:
    """Raise the engine's errors as this package's, except for a missing target."""
    try:
        yield
    except TargetError:
        raise
    except AbeleError as error:
        raise GraphError(str(error)) from error


def traced_with(
    model: torch.nn.Module,
    named: Mapping[str, SambaTensor],
    keywords: Sequence[str],
    rule: UpdateRule | None,
    loss_indices: Sequence[int] | None,
    *,
    fused_only: bool,
) -> Sectioned:
    """Capture the model with inputs from ``arguments.named_inputs``.

    Raises:
        GraphError: it cannot be captured; names the line.
    """
    values = list(named.values())
    by_keyword = dict(zip(keywords, values, strict=True)) if keywords else {}
    positional = [] if keywords else values
    with _graph_errors():
        return trace_model(model, positional, by_keyword, rule, loss_indices, fused_only=fused_only)


def _destination(name: str, settings: Mapping[str, Any]) -> Path:
    folder = settings.get("output_folder") or "out"
    arguments.check("output_folder", folder, (str, os.PathLike), "the path of a folder")
    folder = Path(folder)
    stamp = time.strftime("%Y%m%d_%H%M%S")
    base = settings.get("pef_name") or f"{name}_{stamp}_{os.getpid()}"
    base = str(base).removesuffix(_pef.SUFFIX)
    why = why_no_folder_name(base) or why_no_folder_name(f"{base}{_pef.SUFFIX}")
    if why is not None:
        raise UsageError(
            f"pef_name {base!r} is not the name of a file: {why}. Choose the folder by "
            "output_folder."
        )
    return folder / base / f"{base}{_pef.SUFFIX}"


def _about(
    name: str | None,
    settings: Mapping[str, Any],
    metadata: Mapping[str, Any] | None,
    target: str,
    *,
    fused_only: bool,
) -> dict[str, Any]:
    return {
        "name": name,
        "config": {k: _plain(v) for k, v in settings.items() if not callable(v)},
        "metadata": {k: _plain(v) for k, v in (metadata or {}).items()},
        "target": target,
        "fused_only": fused_only,
    }


def _plain(value: Any) -> Any:
    """Return a JSON value unchanged, any other as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
