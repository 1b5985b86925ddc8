"""Loops and branches inside forward: one node of the program each, and plain Python on the host."""

from collections.abc import Callable, Sequence

import torch

from abele.trace import control_flow
from poptorch._error import Error, error
from poptorch._forward.running import capturing


def for_loop(
    count: int,
    body: Callable[..., Sequence[torch.Tensor]],
    inputs: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Apply a function to its own results a fixed number of times.

    In a wrapped model the body is traced once and runs in a loop of the program, which therefore
    does not grow with ``count``. Prints and host calls of a body happen each time if its results
    depend on theirs, and are left out if not. Outside it is a loop of Python.

    Args:
        count: how often.
        body: called as ``body(*inputs)``; returns a list of as many tensors (or one alone) with the
            same shapes and types. It may read any other tensor and change its arguments in place,
            which are copies.
        inputs: where to start; unchanged.

    Returns:
        What the last call returned; copies of ``inputs`` if ``count`` is 0.

    Raises:
        ValueError: ``inputs`` is not a list of tensors.
        poptorch.Error: in training, ``count`` is not an int, or the body's results do not fit.
    """
    _check_list("poptorch.for_loop() expects inputs to be a list of tensors", inputs)
    _refuse_training("for_loop")
    if not isinstance(count, int) or isinstance(count, bool):
        raise error(f"poptorch.for_loop() needs an int as count, found {_kind(count)}.")

    def checked(*values: torch.Tensor) -> list[torch.Tensor]:
        return _results("for_loop", body(*values))

    def check(results: Sequence[torch.Tensor]) -> None:
        _compare("for_loop", "inputs", inputs, "results of the body", results)

    if capturing() is not None:
        return control_flow.loop(count, checked, inputs, check)
    values = [tensor.clone() for tensor in inputs]
    for _ in range(count):
        values = checked(*values)
        check(values)
    return values


def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Sequence[torch.Tensor]],
    then_inps: list[torch.Tensor],
    else_body: Callable[..., Sequence[torch.Tensor]],
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Run one of two functions, as a tensor's value says when the program runs.

    In a wrapped model both functions are traced and one runs. Outside only one is called.

    Args:
        condition: one bool; other types count as true unless zero.
        then_body: called as ``then_body(*then_inps)`` where the condition holds; returns a list of
            tensors or one alone.
        then_inps: its arguments, which it sees as copies.
        else_body: called where the condition does not hold; returns as many tensors of the same
            shapes and types.
        else_inps: its arguments, likewise.

    Returns:
        The results of the function that ran.

    Raises:
        ValueError: ``then_inps`` or ``else_inps`` is not a list of tensors.
        poptorch.Error: in training, the condition is not one element, or the results differ in
            number, shape or type.
    """
    for values in (then_inps, else_inps):
        _check_list(
            "poptorch.cond() expects then_inps and else_inps to be lists of tensors", values
        )
    _refuse_training("cond")
    if not isinstance(condition, torch.Tensor) or condition.numel() != 1:
        raise error(
            "poptorch.cond() needs a condition of one element, found "
            f"{_kind(condition)}. Reduce it first: condition.all()."
        )
    bodies = (_returning_list(then_body), _returning_list(else_body))
    if capturing() is None:
        side = 0 if bool(condition) else 1
        return bodies[side](*[tensor.clone() for tensor in (then_inps, else_inps)[side]])

    def check(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
        _compare("cond", "results of then_body", first, "results of else_body", second)

    scalar = condition.reshape(()).to(torch.bool)
    return control_flow.choose(scalar, bodies, (then_inps, else_inps), check)


def _check_list(sentence: str, values: object) -> None:
    if not isinstance(values, list):
        raise ValueError(f"{sentence}, found {_kind(values)}.")
    for index, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"{sentence}, found {_kind(value)} at position {index}.")


def _refuse_training(name: str) -> None:
    if capturing():
        raise error(
            f"poptorch.{name}() is only supported in inference. It has no gradient: in training, "
            "write the loop as Python, or choose with torch.where."
        )


def _returning_list(body: Callable) -> Callable[..., list[torch.Tensor]]:
    return lambda *values: _results("cond", body(*values))


def _results(name: str, results: object) -> list[torch.Tensor]:
    values = [results] if isinstance(results, torch.Tensor) else results
    if not isinstance(values, list | tuple) or not all(isinstance(v, torch.Tensor) for v in values):
        raise error(
            f"A body of poptorch.{name}() returns a list of tensors, found {_kind(results)}."
        )
    return list(values)


def _compare(name: str, left_name: str, left: Sequence, right_name: str, right: Sequence) -> None:
    if len(left) != len(right):
        raise _mismatch(name, "number", f"{len(left)} {left_name}, {len(right)} {right_name}")
    for index, (one, other) in enumerate(zip(left, right, strict=True)):
        if one.shape != other.shape:
            shapes = f"{list(one.shape)} in {left_name}, {list(other.shape)} in {right_name}"
            raise _mismatch(name, "shape", f"{shapes}, at position {index}")
        if one.dtype != other.dtype:
            types = f"{one.dtype} in {left_name}, {other.dtype} in {right_name}"
            raise _mismatch(name, "dtype", f"{types}, at position {index}")


def _mismatch(name: str, attribute: str, difference: str) -> Error:
    return error(
        f"poptorch.{name}() needs tensors that agree in number, shape and dtype; the {attribute} "
        f"differs: {difference}."
    )


def _kind(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"{type(value).__name__}"
