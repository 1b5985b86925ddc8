"""Compilation of a model to a PEF: capture, starts of backward, code, and file."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import sambaflow
from abele import questions
from abele.capture import Captured, capture
from abele.capture.sections import Output, Sectioned, capture_from_outputs, sections
from abele.compilation.build import build
from abele.errors import AbeleError, TargetError
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.storage import atomic
from abele.storage.files import why_no_folder_name
from abele.trace.module_state import ModuleState, parameter_names, plain
from sambaflow.errors import GraphError, UsageError
from sambaflow.logging import say
from sambaflow.samba import _arguments as arguments
from sambaflow.samba import _optimizers, _pef
from sambaflow.samba._arguments import flat_tensors
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
) -> Path:
    """Compile a model and write its PEF file; see ``SambaSession.compile``."""
    named, keywords = arguments.named_inputs(inputs)
    check_indices(loss_indices)
    rule = rule_of(model, optimizers, inference=inference)
    path = _destination(name or type(model).__name__.lower(), settings)
    log = path.with_suffix(".samba.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    say(f"Compiling {name or type(model).__name__}; the log goes to {log}")
    described = _pef.interface(model, named, keywords, rule, loss_indices)
    _refuse_questions()
    started = time.perf_counter()
    traced = traced_with(model, named, keywords, rule, loss_indices)
    _say_traced(traced, time.perf_counter() - started)
    with _graph_errors():
        config = StepConfig(training=rule is not None)
        made, record = build(traced.captured.programs, config, log_folder=path.parent)
        seconds = record.seconds.get("compile", 0.0)
        say(f"Compiled for target {record.target!r} in {seconds:.1f} s")
        about = _about(name, settings, pef_metadata, record.target)
        _pef.write(path, traced, made, described, named, loss_indices, about)
    text = "\n\n".join(program.text() for program in made.programs)
    atomic.write_text(log, text)
    size = path.stat().st_size / 2**20
    say(f"PEF file {path} created, {size:.2f} MiB, executable {record.executable[:12]}")
    say("Compilation succeeded.")
    return path


def _refuse_questions() -> None:
    """Raise under ``abele fit`` or ``abele stage``: these support PopTorch programs only."""
    taken = questions.taken()
    if taken is not None:
        taken.refuse(
            "The answer is known for PopTorch programs. A SambaFlow program has sections instead, "
            "forward, backward and update, which run on one device: compile and measure it."
        )


def _say_traced(traced: Sectioned, seconds: float) -> None:
    programs = ", ".join(
        f"{p.name} ({len(p.graph.graph.nodes)} nodes)" for p in traced.captured.programs
    )
    say(f"Captured in {seconds:.1f} s: {programs}")
    if traced.starts:
        kinds = [traced.outputs[i].loss for i in traced.starts]
        origin = "with gradient one" if any(kinds) else "with gradients of the caller"
        starts = ", ".join(f"output_{i}" for i in traced.starts)
        say(f"Backward starts from {starts} {origin}")


def check_indices(indices: Any) -> None:
    """Raise if ``loss_indices`` is no list of distinct output positions."""
    if indices is None:
        return
    needed = "a list of positions of outputs"
    arguments.check("loss_indices", indices, (list, tuple), needed)
    for index in indices:
        arguments.check("An item of loss_indices", index, int, "the position of an output")
    if len(set(indices)) < len(indices):
        raise UsageError(f"loss_indices {list(indices)} names an output twice. Name each once.")


def rule_of(model: torch.nn.Module, optimizers: Any, *, inference: bool) -> UpdateRule | None:
    """Return the update rule of the optimizers; None for inference."""
    listed = _optimizers.as_list(optimizers)
    if inference and listed:
        raise UsageError(
            "An optimizer was given for inference. Pass None, or compile without --inference."
        )
    return _optimizers.to_rule(listed, parameter_names(model))


@contextlib.contextmanager
def _graph_errors() -> Iterator[None]:
    """Convert the engine's errors to ``GraphError``, except for a missing target."""
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
) -> Sectioned:
    """Capture a model with dummy inputs from ``named_inputs``."""
    values = list(named.values())
    by_keyword = dict(zip(keywords, values, strict=True)) if keywords else {}
    positional = [] if keywords else values
    with _graph_errors():
        return trace_model(model, positional, by_keyword, rule, loss_indices)


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
) -> dict[str, Any]:
    return {
        "name": name,
        "config": {k: _plain(v) for k, v in settings.items() if not callable(v)},
        "metadata": {k: _plain(v) for k, v in (metadata or {}).items()},
        "target": target,
    }


def _plain(value: Any) -> Any:
    """Convert a value to JSON types; unknown types become text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)


def trace_model(
    module: torch.nn.Module,
    positional: Sequence[torch.Tensor],
    keywords: Mapping[str, torch.Tensor],
    rule: UpdateRule | None,
    loss_indices: Sequence[int] | None = None,
) -> Sectioned:
    """Capture a module with its loss, backward pass and update.

    Backward starts from the outputs of ``loss_indices``: by default from those that are scalars or
    results of a criterion, and without any from every output, whose gradients then come from the
    host.

    Returns:
        ``forward``; for training also ``backward``, ``update`` and, where something is a loss,
        ``step``.
    """
    names = tuple(keywords)

    def call(flat: list[torch.Tensor]) -> list[torch.Tensor]:
        count = len(flat) - len(names)
        result = module(*flat[:count], **dict(zip(names, flat[count:], strict=True)))
        outputs = list(flat_tensors(result))
        if not outputs:
            raise GraphError(
                f"forward of {type(module).__name__} returned no tensor, found "
                f"{type(result).__name__}. Return a tensor, or tuples, lists or dictionaries of "
                "tensors."
            )
        return outputs

    inputs = [plain(value) for value in (*positional, *keywords.values())]
    hidden = [str(path) for path in sambaflow.__path__]
    if rule is None:
        config = StepConfig(training=False)
        captured = capture(call, module, inputs, config, hidden_paths=hidden)
        return Sectioned(captured=captured, outputs=_inferred(captured), starts=())
    whole = capture_from_outputs(
        call,
        module,
        inputs,
        rule,
        lambda outputs: _starts(module, rule, outputs, loss_indices),
        hidden_paths=hidden,
    )
    return _with_sections(whole, loss_indices)


def _inferred(captured: Captured) -> tuple[Output, ...]:
    computed = iter(captured.programs[0].outputs)
    constants = captured.constants
    count = len(constants) + len(captured.programs[0].outputs)
    described = [constants[i] if i in constants else next(computed) for i in range(count)]
    return tuple(
        Output(shape=tuple(each.shape), dtype=each.dtype, differentiable=False, loss=False)
        for each in described
    )


def _with_sections(whole: Sectioned, loss_indices: Sequence[int] | None) -> Sectioned:
    """Select the programs that can run: the full step if there is a loss, and its sections."""
    hosts = not (loss_indices or any(whole.outputs[i].loss for i in whole.starts))
    programs = (*(() if hosts else whole.captured.programs), *sections(whole))
    captured = dataclasses.replace(whole.captured, programs=programs)
    return dataclasses.replace(whole, captured=captured)


def _starts(
    module: torch.nn.Module,
    rule: UpdateRule,
    outputs: Sequence[Output],
    wanted: Sequence[int] | None,
) -> tuple[int, ...]:
    """Return the positions of the outputs where backward starts."""
    trained = {name for group in rule.groups for name in group.params}
    if not trained & ModuleState.of(module).trainable:
        raise GraphError(
            "The optimizers hold none of the model's parameters that require gradients. Make "
            "them from model.parameters() of the model that is compiled."
        )
    usable = tuple(i for i, output in enumerate(outputs) if output.differentiable)
    if wanted is not None:
        wrong = [i for i in wanted if i not in usable]
        if wrong or not wanted:
            raise GraphError(
                f"loss_indices {list(wanted)} was asked for, but backward can start from outputs "
                f"{list(usable)} of the {len(outputs)} that forward returns. Name some of those."
            )
        return tuple(wanted)
    if not usable:
        raise GraphError(
            "No output of forward depends on a parameter that the optimizers train, so there is "
            "nothing to train. Return the loss or the scores that the loss is made from, or "
            "compile for inference with optimizers=None."
        )
    return tuple(i for i in usable if outputs[i].loss) or usable
