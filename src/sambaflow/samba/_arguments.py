"""Validation of the session's arguments, and matching of a program's inputs by name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sambaflow.errors import InputError, SambaError, UsageError
from sambaflow.samba.sambatensor import SambaTensor, from_torch_tensor

_SHOWN = 60  # characters of a value that a message repeats


def check(
    name: str,
    value: Any,
    kinds: type | tuple[type, ...],
    needed: str,
    error: type[SambaError] = UsageError,
) -> None:
    """Raise if an argument is no instance of ``kinds``; ``needed`` says what to pass instead."""
    if not isinstance(value, kinds):
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN and "\n" not in shown else "something else"
        kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise error(f"{name} is {shown} ({kind}), needed is {needed}.")


def check_model(model: Any) -> None:
    """Raise if a model is no ``torch.nn.Module``."""
    check("model", model, torch.nn.Module, "a torch.nn.Module: construct it and pass it itself")


def check_tensors(name: str, values: Sequence[Any]) -> None:
    """Raise if a list has an item that is neither a tensor nor None."""
    for index, value in enumerate(values):
        place = f"{name}[{index}]"
        check(place, value, (torch.Tensor, type(None)), "a tensor, or None for none", InputError)


def named_inputs(inputs: Any) -> tuple[dict[str, SambaTensor], tuple[str, ...]]:
    """Return a model's inputs by name, and the names that forward takes by keyword.

    A dictionary has names of forward's parameters; a tuple or list has their order.
    """
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    keywords: tuple[str, ...] = ()
    if isinstance(inputs, Mapping):
        keywords = tuple(inputs)
        inputs = list(inputs.values())
    if not isinstance(inputs, list | tuple) or not inputs:
        raise UsageError(
            f"inputs have to be a tuple, list or dictionary of tensors, found {inputs!r}."
        )
    by_name: dict[str, SambaTensor] = {}
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            raise UsageError(
                f"Input {index} is a {type(value).__name__}. A program takes tensors; make other "
                "values attributes of the model."
            )
        tensor = value if isinstance(value, SambaTensor) else from_torch_tensor(value)
        if tensor._sn_name is None:
            # By position, so that compiling and running in two processes agree.
            tensor = from_torch_tensor(value, name=f"input_{index}", batch_dim=tensor.batch_dim)
        if tensor.sn_name in by_name:
            raise UsageError(
                f"Two inputs are named {tensor.sn_name!r}. Names tell inputs apart at run time."
            )
        by_name[tensor.sn_name] = tensor
    return by_name, keywords


def of_run(compiled: Mapping[str, SambaTensor], tensors: Any) -> dict[str, torch.Tensor]:
    """Match the input tensors of a run to the compiled input names.

    Named tensors are matched by name, in any order, and tensors of a dictionary that have none by
    its keys; if there are no names at all, by position.

    Raises:
        InputError: something is no tensor, or names, shapes or dtypes are not those that were
            compiled.
    """
    if isinstance(tensors, torch.Tensor):
        tensors = (tensors,)
    needed = "a tensor, or a tuple, list or dictionary of tensors"
    check("input_tensors", tensors, (Mapping, list, tuple), needed, InputError)
    keys = list(tensors) if isinstance(tensors, Mapping) else [None] * len(tensors)
    values = list(tensors.values()) if isinstance(tensors, Mapping) else list(tensors)
    names = [getattr(v, "_sn_name", None) or k for v, k in zip(values, keys, strict=True)]
    if not any(names) and len(values) == len(compiled):
        names = list(compiled)
    if sorted(map(str, names)) != sorted(compiled):
        raise InputError(
            f"The program was compiled for inputs {', '.join(compiled)}, given "
            f"{', '.join(name or '(unnamed)' for name in names) or 'none'}. Give every tensor the "
            "name of its dummy input: samba.from_torch_tensor(tensor, name=...)."
        )
    by_name = dict(zip(map(str, names), values, strict=True))
    for name, dummy in compiled.items():
        check(f"Input {name}", by_name[name], torch.Tensor, "a tensor", InputError)
        _check(name, dummy, by_name[name])
    return by_name


def _check(name: str, dummy: SambaTensor, value: torch.Tensor) -> None:
    if value.shape == dummy.shape and value.dtype is dummy.dtype and value.device.type != "meta":
        return
    if value.device.type == "meta":
        raise InputError(f"Input {name} has a shape and no data. Pass a tensor with values.")
    what = f"compiled as {list(dummy.shape)} {dummy.dtype}, given {list(value.shape)} {value.dtype}"
    if value.shape != dummy.shape:
        incomplete = value.dim() == dummy.dim() and value.shape[1:] == dummy.shape[1:]
        advice = "Shapes are static; compile for this one."
        if incomplete:
            advice = "Skip an incomplete last batch (DataLoader(drop_last=True)), or compile anew."
        raise InputError(f"Input {name} was {what}. {advice}")
    raise InputError(f"Input {name} was {what}. Convert it, for example with .to({dummy.dtype}).")


def select(outputs: Sequence[SambaTensor], wanted: Any) -> tuple[SambaTensor, ...]:
    """Return the requested outputs of a run in the requested order; all by default."""
    if wanted is None:
        return tuple(outputs)
    by_name = {output.sn_name: output for output in outputs}
    needed = "one of the program's outputs, or a list of them"
    check("output_tensors", wanted, (torch.Tensor, Iterable), needed, InputError)
    items = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    names = [getattr(item, "sn_name", repr(item)) for item in items]
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise InputError(
            f"output_tensors has {', '.join(unknown)}; the program's outputs are "
            f"{', '.join(by_name)}. Pass model.output_tensors or what trace_graph returned."
        )
    return tuple(by_name[name] for name in names)


def flat_tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested tuples, lists and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from flat_tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flat_tensors(item)
