"""Operations of PopTorch that programs call inside forward."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele import _torch
from abele.capture.replacements import offsets
from abele.ops import ctc, farthest_points
from abele.ops.print_tensor import FORMATS, Layout, print_tensor
from abele.trace import control_flow
from poptorch._error import Error, error, require
from poptorch._forward.running import capturing, isRunningOnIpu
from poptorch.enums import MatMulSerializationMode

_KINDS = {torch.Tensor: "a tensor", int: "an int", float: "a float", bool: "a bool"}


def _need(name: str, kind: type, **values: object) -> None:
    """Check the types of an operation's arguments; raise poptorch.Error for a mismatch."""
    for label, value in values.items():
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            found = type(value).__name__
            raise error(f"poptorch.{name}() needs {label} as {_KINDS[kind]}, found {found}.")


# -- loops and branches ----------------------------------------------------------------------


def for_loop(
    count: int,
    body: Callable[..., Sequence[torch.Tensor]],
    inputs: list[torch.Tensor],
) -> list[torch.Tensor]:
    """Run a loop: apply a function to tensors, then to its own results, ``count`` times.

    In a wrapped model the body is traced once and runs in a loop of the program, which therefore
    does not grow with ``count``. Prints and host calls of a body happen each time if its results
    depend on theirs, and are left out if not. Outside it is a loop of Python.

    Args:
        count: number of iterations.
        body: called as ``body(*inputs)``; returns a list of as many tensors (or one alone) with the
            same shapes and types. It may read any other tensor and change its arguments in place,
            which are copies.
        inputs: arguments of the first iteration; unchanged.

    Returns:
        The results of the last iteration; copies of ``inputs`` if ``count`` is 0.

    Raises:
        ValueError: ``inputs`` is not a list of tensors.
        poptorch.Error: in training, ``count`` is not an int, or the body's results do not fit.
    """
    _check_list("poptorch.for_loop() expects inputs to be a list of tensors", inputs)
    _refuse_training("for_loop")
    _need("for_loop", int, count=count)

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
    """Run one of two functions, chosen by a boolean tensor when the program runs.

    In a wrapped model both functions are traced and one runs. Outside only one is called.

    Args:
        condition: one bool; other types count as true unless zero.
        then_body: called as ``then_body(*then_inps)`` where the condition holds; returns a list of
            tensors or one alone.
        then_inps: its arguments, which it sees as copies.
        else_body: called where the condition does not hold; returns as many tensors of the same
            shapes and types.
        else_inps: its arguments, which it sees as copies.

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
    bodies = (
        lambda *values: _results("cond", then_body(*values)),
        lambda *values: _results("cond", else_body(*values)),
    )
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


def _results(name: str, results: object) -> list[torch.Tensor]:
    values = [results] if isinstance(results, torch.Tensor) else results
    if not isinstance(values, list | tuple) or not all(isinstance(v, torch.Tensor) for v in values):
        raise error(
            f"A body of poptorch.{name}() returns a list of tensors, found {_kind(results)}."
        )
    return list(values)


def _compare(name: str, left_name: str, left: Sequence, right_name: str, right: Sequence) -> None:
    def refuse(attribute: str, difference: str) -> Error:
        return error(
            f"poptorch.{name}() needs tensors that agree in number, shape and dtype; the "
            f"{attribute} differs: {difference}."
        )

    if len(left) != len(right):
        raise refuse("number", f"{len(left)} {left_name}, {len(right)} {right_name}")
    for index, (one, other) in enumerate(zip(left, right, strict=True)):
        for attribute, mine, others in (
            ("shape", list(one.shape), list(other.shape)),
            ("dtype", one.dtype, other.dtype),
        ):
            if mine != others:
                found = f"{mine} in {left_name}, {others} in {right_name}, at position {index}"
                raise refuse(attribute, found)


def _kind(value: object) -> str:
    is_tensor = isinstance(value, torch.Tensor)
    return f"a tensor of shape {list(value.shape)}" if is_tensor else type(value).__name__


# -- slices whose position is a tensor's value -----------------------------------------------

_INDEX_TYPES = (torch.int16, torch.int32, torch.int64)


def dynamic_slice(
    tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    """Slice a tensor along a dimension at a start index that is itself a tensor.

    A start from which the slice would leave the tensor is moved to the nearest one from which it
    does not, so that negative starts mean 0. Gradients reach ``tensor``.

    Args:
        tensor: any shape but 0-d.
        dim: along which; negative ones count from the end.
        start: one int16, int32 or int64 element; its value may differ at every call.
        size: how much of the dimension the slice spans.
        step: distance of its elements.

    Returns:
        A new tensor with ``ceil(size / step)`` elements along ``dim``.

    Raises:
        poptorch.Error: an argument of another type, or a size or dimension the tensor has not.

    Differs from the original: what a start out of range reads is defined.
    """
    _need("dynamic_slice", torch.Tensor, tensor=tensor)
    return tensor.index_select(dim, _index("dynamic_slice", tensor, dim, start, size, step))


def dynamic_update(
    input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int
) -> torch.Tensor:
    """Return a copy of a tensor with a slice replaced, at a start index that is itself a tensor.

    Starts out of range move as for ``dynamic_slice``. Gradients reach ``input`` and ``src``.

    Args:
        input: any shape but 0-d.
        src: of the same dtype and rank; ``size`` elements along ``dim``, else like ``input``.
        dim: along which; negative ones count from the end.
        start: one int16, int32 or int64 element; its value may differ at every call.
        size: how much of the dimension is replaced.

    Raises:
        poptorch.Error: an argument of another type, or tensors that do not fit.

    Differs from the original: what a start out of range writes is defined.
    """
    name = "dynamic_update"
    _need(name, torch.Tensor, input=input, src=src)
    index = _index(name, input, dim, start, size, 1)
    if src.dtype != input.dtype:
        raise error(
            f"poptorch.{name}() needs input and src of the same dtype, found input of "
            f"{input.dtype} and src of {src.dtype}."
        )
    if src.dim() != input.dim():
        raise error(
            f"poptorch.{name}() needs input and src of the same rank, found input of rank "
            f"{input.dim()} and src of rank {src.dim()}."
        )
    expected_shape = list(input.shape)
    expected_shape[dim] = size
    if list(src.shape) != expected_shape:
        raise error(
            f"poptorch.{name}() with size {size} on dimension {dim} of input {list(input.shape)} "
            f"needs src of shape {expected_shape}, found {list(src.shape)}."
        )
    return input.index_copy(dim, index, src)


def _index(
    name: str, tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int
) -> torch.Tensor:
    _need(name, torch.Tensor, start=start)
    _need(name, int, dim=dim, size=size, step=step)
    if start.dtype not in _INDEX_TYPES or start.numel() != 1:
        raise error(
            f"poptorch.{name}() needs start as one element of int16, int32 or int64, found "
            f"{list(start.shape)} of {start.dtype}."
        )
    rank = tensor.dim()
    if not -rank <= dim < rank:
        raise error(f"poptorch.{name}() on dimension {dim} of a tensor of rank {rank}.")
    if not 1 <= size <= tensor.shape[dim] or step < 1:
        raise error(
            f"poptorch.{name}() needs a size from 1 to {tensor.shape[dim]}, the length of "
            f"dimension {dim}, and a step of at least 1, found size {size} and step {step}."
        )
    return _range(start, tensor.shape[dim], size, step)


def _range(start: torch.Tensor, length: int, size: int, step: int) -> torch.Tensor:
    first = start.reshape(()).to(torch.int64).clamp(0, length - size)
    return first + torch.arange(0, size, step, device=start.device)


class TensorSlices(TorchFunctionMode):
    """A mode in which ``x[i]`` and ``x[i : i + 2]`` accept an index tensor whose value is unknown.

    The ends of a slice have to differ by a constant that the traced operations show. Everything
    else is left to torch, which says that it needs the value.
    """

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None):
        """Call ``func``, with dynamic indices and slices replaced by vectors of positions."""
        if func is torch.Tensor.__getitem__ or func is torch.Tensor.__setitem__:
            positions = _positions(args[0], args[1])
            if positions is not None:
                return _at(func, args[0], *positions, *args[2:])
        return func(*args, **(kwargs or {}))


def _at(
    func: Callable, tensor: torch.Tensor, index: tuple, dropped_dim: int | None, *assigned: Any
) -> torch.Tensor | None:
    if dropped_dim is None:
        return func(tensor, index, *assigned)
    if not assigned:
        return tensor[index].squeeze(dropped_dim)
    value = torch.as_tensor(assigned[0], dtype=tensor.dtype, device=tensor.device)
    shape = tensor[index].squeeze(dropped_dim).shape
    return func(tensor, index, value.expand(shape).unsqueeze(dropped_dim))


def _positions(tensor: torch.Tensor, index: Any) -> tuple[tuple, int | None] | None:
    """Replace the dynamic index or slice in an indexing expression by a vector of positions.

    Returns:
        The new index and, for a single position, the dimension to squeeze in the result; None
        if the index is to stay as it is.
    """
    items = index if isinstance(index, tuple) else (index,)
    dynamic = [i for i, item in enumerate(items) if _is_number(item) or _is_dynamic(item)]
    # With another tensor among the indices torch would pair their elements.
    others = [item for i, item in enumerate(items) if i not in dynamic]
    if len(dynamic) != 1 or any(isinstance(item, torch.Tensor | list) for item in others):
        return None
    position = dynamic[0]
    before, item, after = items[:position], items[position], items[position + 1 :]
    if _is_number(item):
        return (*before, item.reshape(1).to(torch.int64), *after), _place(before, after)
    dim = _dimension(tensor, items, position)
    size = offsets.difference(item.start, item.stop)
    step = 1 if item.step is None else item.step
    if size is None or not 1 <= size <= tensor.shape[dim] or not isinstance(step, int) or step < 1:
        return None
    return (*before, _range(item.start, tensor.shape[dim], size, step), *after), None


def _is_number(item: object) -> bool:
    return isinstance(item, torch.Tensor) and item.dim() == 0 and item.dtype in _INDEX_TYPES


def _place(before: tuple, after: tuple) -> int:
    """Return the result dimension of an index between the given indices."""
    if Ellipsis in before:
        return -1 - sum(not isinstance(item, int) for item in after)
    return sum(not isinstance(item, int) for item in before)


def _is_dynamic(item: object) -> bool:
    return isinstance(item, slice) and (
        isinstance(item.start, torch.Tensor) or isinstance(item.stop, torch.Tensor)
    )


def _dimension(tensor: torch.Tensor, items: tuple, position: int) -> int:
    """Return the tensor dimension that the index at ``position`` selects from."""
    taking = [item is not None and item is not Ellipsis for item in items]
    if Ellipsis in items[:position]:
        return tensor.dim() - sum(taking[position:])
    return sum(taking[:position])


# -- point clouds ----------------------------------------------------------------------------

Batch = list[int] | torch.Tensor | None


def fps(
    src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False
) -> torch.Tensor:
    """Sample points of each cloud by farthest point sampling.

    Args:
        src: [points, ...] coordinates; the clouds are concatenated.
        ptr: where each cloud begins, and where the last one ends: ``[0, 5, 9]`` for 5 and 4.
        ratio: share of each cloud to keep, rounded up.
        random_start: begin at a random point of each cloud instead of its first.

    Returns:
        int64 rows of ``src``, cloud by cloud, in the order they were chosen. Among points equally
        far the first is taken.

    Raises:
        poptorch.Error: an argument of another type, boundaries that do not rise from 0 to the
            number of points, or a ratio outside 0 < ratio <= 1.
    """
    _need("fps", torch.Tensor, src=src)
    _need("fps", float, ratio=ratio)
    _need("fps", bool, random_start=random_start)
    _check_boundaries(ptr, src)
    if not 0 < ratio <= 1:
        raise error(f"poptorch.fps() needs 0 < ratio <= 1, found {ratio}.")
    sizes = [end - begin for begin, end in itertools.pairwise(ptr)]
    # 0.1 * 30 is a bit more than 3 in binary and means 3.
    counts = [math.ceil(size * ratio - 1e-9) for size in sizes]
    if random_start:
        starts = [torch.randint(max(size, 1), (), device=src.device) for size in sizes]
        begins = torch.stack(starts)
    else:
        begins = torch.zeros(len(sizes), dtype=torch.int64, device=src.device)
    points = src.reshape(src.shape[0], -1).float()
    return farthest_points.forward(points, begins, ptr, counts)


def _check_boundaries(ptr: object, src: torch.Tensor) -> None:
    if not isinstance(ptr, list) or not all(type(each) is int for each in ptr):
        raise error(f"poptorch.fps() needs ptr as a list of ints, found {ptr!r}.")
    if len(ptr) < 2:
        raise error(
            f"poptorch.fps() needs at least 2 boundaries in ptr, found {len(ptr)}. One cloud of "
            "all points is [0, len(src)]."
        )
    points = src.shape[0] if src.dim() else 0
    if ptr[0] != 0 or ptr[-1] != points or ptr != sorted(ptr):
        raise error(
            f"poptorch.fps() needs ptr to rise from 0 to the number of points, {points}, "
            f"found {ptr}."
        )


def nearest(
    x: torch.Tensor, y: torch.Tensor, batch_x: Batch = None, batch_y: Batch = None
) -> torch.Tensor:
    """Return the index of the nearest row of ``y`` in the same batch, for each row of ``x``.

    Args:
        x: [N] or [N, features].
        y: [M] or [M, features].
        batch_x: N batch numbers, a list or a tensor; None puts all rows into batch 0.
        batch_y: M batch numbers. A list takes the dtype of the other one.

    Returns:
        [N] int64 rows of ``y``: the first of several equally near, -1 where the batch has none.

    Raises:
        poptorch.Error: an argument of another type, or sizes that do not fit.
    """
    _need("nearest", torch.Tensor, x=x, y=y)
    left, right = (value.reshape(value.shape[0], -1).float() for value in (x, y))
    if left.shape[1] != right.shape[1]:
        raise error(
            "poptorch.nearest() needs as many features in x as in y, found "
            f"{left.shape[1]} and {right.shape[1]}."
        )
    # Without matrix products, which round differently and would decide ties at random.
    distance = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    if batch_x is None and batch_y is None:
        return distance.argmin(dim=1)
    ids = _batch("batch_x", batch_x, x, batch_y), _batch("batch_y", batch_y, y, batch_x)
    same_batch = ids[0].unsqueeze(1) == ids[1].unsqueeze(0)
    closest = torch.where(same_batch, distance, math.inf).argmin(dim=1)
    return torch.where(same_batch.any(dim=1), closest, -1)


def _batch(name: str, batch: Batch, rows: torch.Tensor, other: Batch) -> torch.Tensor:
    dtype = other.dtype if isinstance(other, torch.Tensor) else torch.int64
    if batch is None:
        return torch.zeros(rows.shape[0], dtype=dtype, device=rows.device)
    if isinstance(batch, list):
        if not all(type(each) is int for each in batch):
            raise error(f"poptorch.nearest() needs a list of ints as {name}, found {batch!r}.")
        batch = torch.tensor(batch, dtype=dtype, device=rows.device)
    if not isinstance(batch, torch.Tensor):
        found = type(batch).__name__
        raise error(f"poptorch.nearest() needs {name} as a list or tensor, found {found}.")
    if tuple(batch.shape) != (rows.shape[0],):
        raise error(
            f"poptorch.nearest() needs one number per row in {name}, {rows.shape[0]}, found shape "
            f"{list(batch.shape)}."
        )
    return batch


def serializedMatMul(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int = 0,
    keep_precision: bool = False,
) -> torch.Tensor:
    """Compute ``torch.matmul`` in slices, to reduce the memory of intermediate results.

    Slicing InputChannels or OutputChannels sums up the same products for every element of the
    result; slicing ReducingDim sums within each slice first. So results equal those of
    ``torch.matmul`` up to rounding.

    Differs from the original: slices are taken on the host as well, and factors of 0 and 1 mean one
    matrix multiplication.

    Args:
        lhs: ``[..., input channels, reducing]``.
        rhs: ``[..., reducing, output channels]``.
        mode: dimension to slice; Disabled for none.
        factor: number of slices.
        keep_precision: half operands are multiplied and summed, gradients included, in float32; the
            result is rounded once.

    Returns:
        The matrix product, in the operands' dtype.

    Raises:
        AssertionError: mode, factor or keep_precision of another type.
        poptorch.Error: the factor does not divide the dimension, or there is no such dimension.
    """
    require(
        isinstance(mode, MatMulSerializationMode),
        f"mode must be a poptorch.MatMulSerializationMode, not {mode!r}",
    )
    require(isinstance(factor, int), f"factor must be an int, not {factor!r}")
    require(isinstance(keep_precision, bool), f"keep_precision must be a bool: {keep_precision!r}")
    dtype = torch.result_type(lhs, rhs)
    wide = keep_precision and dtype in (torch.float16, torch.bfloat16)
    if mode is MatMulSerializationMode.Disabled or factor in (0, 1):
        product = _product(lhs, rhs, wide)
    elif mode is MatMulSerializationMode.ReducingDim:
        product = _sum_of_slices(lhs, rhs, factor, wide)
    else:
        product = _joined_slices(lhs, rhs, mode, factor, wide)
    return product.to(dtype) if wide else product


def _product(lhs: torch.Tensor, rhs: torch.Tensor, wide: bool) -> torch.Tensor:
    return torch.matmul(lhs.float(), rhs.float()) if wide else torch.matmul(lhs, rhs)


def _sum_of_slices(lhs: torch.Tensor, rhs: torch.Tensor, factor: int, wide: bool) -> torch.Tensor:
    left = _slices(lhs, -1, factor)
    right = _slices(rhs, -2 if rhs.dim() > 1 else -1, factor)
    total = _product(left[0], right[0], wide)
    for one, other in zip(left[1:], right[1:], strict=True):
        total = total + _product(one, other, wide)
    return total


def _joined_slices(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    mode: MatMulSerializationMode,
    factor: int,
    wide: bool,
) -> torch.Tensor:
    by_rows = mode is MatMulSerializationMode.InputChannels
    dim, sliced, whole = (-2, lhs, rhs) if by_rows else (-1, rhs, lhs)
    if sliced.dim() < 2:
        raise error(
            f"serializedMatMul in mode {mode.name} slices a matrix, found an operand of shape "
            f"{list(sliced.shape)}."
        )
    # Widened before slicing: its gradient, a sum over all slices, is then summed in float32 too.
    whole = whole.float() if wide else whole
    dtype = torch.result_type(lhs, rhs)
    parts = [
        (_product(part, whole, wide) if by_rows else _product(whole, part, wide)).to(dtype)
        for part in _slices(sliced, dim, factor)
    ]
    # A vector on the other side leaves a result with one dimension less.
    return torch.cat(parts, dim=-1 if whole.dim() == 1 else dim)


def _slices(operand: torch.Tensor, dim: int, factor: int) -> tuple[torch.Tensor, ...]:
    size = operand.shape[dim]
    if factor < 1 or size % factor:
        raise error(
            f"The factor of serializedMatMul must divide the dimension that is sliced: {size} "
            f"cannot be cut into {factor} equal slices."
        )
    return operand.split(size // factor, dim)


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> list[torch.Tensor]:
    """Decode the most probable label sequences of CTC log probabilities by prefix beam search.

    Args:
        probs: [time, batch, classes] log probabilities.
        lengths: [batch] integers, how many time steps of each sample count.
        blank: the class that separates labels.
        beam_width: how many sequences are followed at a time.
        top_paths: how many to return, at most ``beam_width``.

    Returns:
        A list of three: log probabilities [batch, top_paths] of the dtype of ``probs``, the best
        first; lengths [batch, top_paths], int32; labels [batch, top_paths, time], int32, padded
        with ``blank``. Where there are fewer sequences, the rest has probability 0 and length 0.

    Raises:
        poptorch.Error: an argument of another type, or sizes that do not fit.
    """
    name = "poptorch.ctc_beam_search_decoder()"
    _need("ctc_beam_search_decoder", torch.Tensor, probs=probs, lengths=lengths)
    _need("ctc_beam_search_decoder", int, blank=blank, beam_width=beam_width, top_paths=top_paths)
    if probs.dim() != 3 or not probs.is_floating_point():
        raise error(
            f"{name} needs floating point probs of shape [time, batch, classes], found "
            f"{list(probs.shape)} of {probs.dtype}."
        )
    if tuple(lengths.shape) != (probs.shape[1],) or lengths.dtype.is_floating_point:
        raise error(
            f"{name} needs one integer per sample in lengths, {probs.shape[1]}, found "
            f"{list(lengths.shape)} of {lengths.dtype}."
        )
    if not 0 <= blank < probs.shape[2]:
        raise error(f"{name} needs blank below {probs.shape[2]}, the classes, found {blank}.")
    if not 1 <= top_paths <= beam_width:
        raise error(
            f"{name} needs 1 <= top_paths <= beam_width, found {top_paths} and {beam_width}."
        )
    return list(ctc.beam_search(probs.detach(), lengths, blank, beam_width, top_paths))


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Print a tensor to stderr whenever the program computes it; return the tensor.

    That is once per micro-batch and replica, not once per call. Use the result: a print whose
    result nothing reads is left out. Outside of a wrapper nothing is printed.

    Args:
        tensor: any shape and type.
        title: printed before the values; default the value's name in the program.
        print_gradient: when training, also write the gradient, under the title with "_gradient".
        summarise_threshold: with more elements than this only the edges are written.
        edge_items: entries at both ends of each dimension of a summary.
        max_line_width: columns after which rows break; 0 for never.
        digits: digits after the point.
        float_format: "auto", "fixed", "scientific", or "none" for type and shape without values.
        separator: between entries.
        open_bracket: before the entries of a dimension.
        close_bracket: after them.

    Returns:
        The same values; with gradients.

    Raises:
        poptorch.Error: not a tensor.
        KeyError: unknown float_format.
    """
    if not isinstance(tensor, torch.Tensor):
        raise error(
            "The 'tensor' argument of ipu_print_tensor must be a torch.Tensor, found "
            f"{type(tensor).__name__}. Use print() for other values."
        )
    if float_format not in FORMATS:
        raise KeyError(f"Unknown float_format {float_format!r}. Use one of {FORMATS}.")
    if not isRunningOnIpu():
        return tensor
    node = _torch.traced_node(tensor)
    title = title or ("constant" if node is None else node.name)
    layout = Layout(
        summarise_threshold=summarise_threshold,
        edge_items=edge_items,
        max_line_width=max_line_width,
        digits=digits,
        float_format=float_format,
        separator=separator,
        open_bracket=open_bracket,
        close_bracket=close_bracket,
    )
    return print_tensor(tensor, title, f"{title}_gradient" if print_gradient else "", layout)
