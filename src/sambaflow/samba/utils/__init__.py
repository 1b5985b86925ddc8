"""Session utilities: loading, comparing, measuring, seeds."""

import contextlib
import json as json_format
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from abele.storage import atomic
from sambaflow.errors import UsageError
from sambaflow.logging import hint
from sambaflow.samba._loaded import SECTIONS, LoadedGraph, rank, world_size
from sambaflow.samba._session import session
from sambaflow.samba.sambatensor import SambaTensor, to_torch
from sambaflow.samba.utils import checkpoint as checkpoint

get_world_size = world_size
get_rank = rank


def trace_graph(
    model: torch.nn.Module,
    inputs: Any,
    optim: Any = None,
    init_output_grads: bool = True,
    loss_indices: Sequence[int] | None = None,
    pef: str | os.PathLike[str] = "",
    mapping: str = "section",
    data_parallel_mode: str = "normal",
    transfer_device: bool = True,
    config_dict: Mapping[str, Any] | None = None,
    **hints: Any,
) -> tuple[SambaTensor, ...]:
    """Load a compiled file into ``samba.session``; see ``SambaSession.trace_graph``.

    ``init_output_grads``, ``mapping``, ``data_parallel_mode`` and ``transfer_device`` are accepted
    and change nothing: gradients of losses are ones unless they are given, and weights always go to
    the device. ``config_dict`` may carry ``pef``.
    """
    del init_output_grads, mapping, data_parallel_mode, transfer_device
    pef = pef or (config_dict or {}).get("pef") or ""
    return session.trace_graph(model, inputs, optim, pef=pef, loss_indices=loss_indices, **hints)


def trace_multigraph(*unused: Any, **also_unused: Any) -> None:
    """Raise a ``UsageError``: several graphs in one PEF file are not supported."""
    raise UsageError(
        "trace_multigraph was asked for; a PEF of this package holds one model. Compile each graph "
        "and load each in a SambaSession of its own."
    )


def init_output_grads(
    output_tensors: Sequence[SambaTensor],
    unspecified_tensor_grad: Sequence[torch.Tensor] = (),
    customized_tensors_dict: Mapping[str, torch.Tensor] | None = None,
    is_variable_batch_size: bool = False,
) -> list[torch.Tensor]:
    """Set the output gradients where backward starts, ones by default.

    Args:
        output_tensors: the outputs of a loaded program.
        unspecified_tensor_grad: one value for all outputs that are not named.
        customized_tensors_dict: gradients by ``sn_name``.
        is_variable_batch_size: accepted; shapes are static.

    Returns:
        The gradients, in order.
    """
    del is_variable_batch_size
    custom = customized_tensors_dict or {}
    for output in output_tensors:
        default = torch.ones(output.shape, dtype=output.dtype)
        if len(unspecified_tensor_grad):
            default = default * torch.as_tensor(unspecified_tensor_grad[0])
        output.sn_grad = custom.get(output.sn_name, default)
    return [output.sn_grad for output in output_tensors if output.sn_grad is not None]


def create_mac_resource_report(*unused: Any, **also_unused: Any) -> None:
    """Accept the call without effect: there are no tiles. See ``session.report``."""
    hint("create_mac_resource_report", "session.report says what runs and where")


def set_seed(seed: int) -> None:
    """Seed the random generators of Python, numpy (if installed) and torch."""
    random.seed(seed)
    torch.manual_seed(seed)
    with contextlib.suppress(ModuleNotFoundError):
        import numpy

        numpy.random.seed(seed % 2**32)


def get_file_dir(file: str) -> str:
    """Return the absolute folder of a file."""
    return str(Path(file).resolve().parent)


def is_main_process() -> bool:
    """Return whether this process has rank 0."""
    return get_rank() == 0


def parse_dtype(name: str | torch.dtype) -> torch.dtype:
    """Return a dtype by name: ``bf16``, ``bfloat16``, ``fp32``, ``float32``, ``int64``, ...

    Raises:
        UsageError: torch has no dtype of that name.
    """
    if isinstance(name, torch.dtype):
        return name
    short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
    plain = name.lower().removeprefix("torch.")
    dtype = vars(torch).get(short.get(plain, plain))
    if not isinstance(dtype, torch.dtype):
        raise UsageError(f"There is no dtype {name!r}. Use bf16, fp32, int64 and the like.")
    return dtype


def assert_close(
    samba_result: Any,
    torch_result: Any,
    name: str = "",
    threshold: float = 3e-3,
    visualize: bool = False,
    **unused: Any,
) -> None:
    """Compare a result with its reference and print the largest difference.

    Args:
        samba_result: what was computed.
        torch_result: what it should be.
        name: what is compared, for the message.
        threshold: largest allowed absolute difference, relative to the largest magnitude of the
            reference where that is above 1.
        visualize: also prints the first values of both.
        unused: accepted.

    Raises:
        AssertionError: they differ by more, in shape, or in where they are finite.
    """
    del unused
    computed, wanted = (torch.as_tensor(to_torch(v)).detach().double() for v in
                     (samba_result, torch_result))  # fmt: skip
    if computed.shape != wanted.shape:
        raise AssertionError(
            f"{name}: shape {list(computed.shape)} was computed, {list(wanted.shape)} is right."
        )
    same = computed.eq(wanted) | (computed.isnan() & wanted.isnan())
    gap = torch.where(same, torch.zeros_like(computed), (computed - wanted).abs())
    largest = float(gap.max()) if gap.numel() else 0.0
    finite = wanted[wanted.isfinite()]
    scale = max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
    if visualize:
        print(f"{name}: {computed.flatten()[:8].tolist()} against {wanted.flatten()[:8].tolist()}")
    if not largest <= threshold * scale:
        raise AssertionError(
            f"{name}: differs by up to {largest:.3g}, allowed {threshold * scale:.3g}."
        )
    print(f"{name}: largest difference {largest:.3g}, allowed {threshold * scale:.3g}")


_WARMUP = 3


def measure_performance(
    model: torch.nn.Module,
    inputs: Any,
    batch_size: int | None = None,
    n_chips: int = 1,
    inference: bool = False,
    run_graph_only: bool = False,
    n_iterations: int = 100,
    json: str | None = None,
    compiled_stats_json: str | None = None,
    data_parallel: bool = False,
    reduce_on_rdu: bool = False,
    use_sambaloader: bool = False,
    min_duration: float = 0.0,
    **hints: Any,
) -> dict[str, Any]:
    """Time repeated runs of the loaded program and print the result.

    A program whose loss is on the host runs its sections with gradients of ones. Weights change.

    Args:
        model: the model that is loaded.
        inputs: one batch.
        batch_size: samples in it; default the first dimension of the first input.
        inference: only forward.
        n_iterations: runs that are counted; three more come before.
        json: file for the numbers.
        compiled_stats_json: file for what was compiled: target, executable, programs.
        data_parallel: as for ``session.run``.
        reduce_on_rdu: as for ``session.run``.
        min_duration: go on until so many seconds have passed.
        n_chips: accepted.
        run_graph_only: accepted.
        use_sambaloader: accepted.
        hints: accepted.

    Returns:
        ``target``, ``executable``, ``iterations``, ``batch_size``, ``latency_s`` (median, fastest)
        and ``samples_per_s`` (from the median).
    """
    del model, n_chips, run_graph_only, use_sambaloader, hints
    graph = session._loaded()
    sections = ["fwd"] if inference or graph.rule is None else None
    arguments: dict[str, Any] = {"section_types": sections}
    if sections is None and graph.traced_hosts:
        ones = [torch.ones(graph.traced.outputs[i].shape) for i in graph.traced.starts]
        arguments["grad_of_outputs"] = ones
    arguments["data_parallel"] = data_parallel or reduce_on_rdu
    times = _timed(lambda: session.run(inputs, **arguments), n_iterations, min_duration)
    rows = batch_size or next(iter(graph.inputs.values())).shape[0]
    result = {
        "target": graph.report.target,
        "executable": graph.report.executable,
        "iterations": len(times),
        "batch_size": rows,
        "latency_s": {"median": statistics.median(times), "fastest": min(times)},
        "samples_per_s": rows / statistics.median(times),
    }
    _print(result)
    _save(json, result)
    _save(compiled_stats_json, _compiled(graph))
    return result


def measure_sections(
    model: torch.nn.Module, inputs: Any, n_iterations: int = 100, **hints: Any
) -> dict[str, float]:
    """Print the median time of each section (forward, backward, update).

    Args:
        model: the model that is loaded.
        inputs: one batch.
        n_iterations: runs that are counted.
        hints: accepted.

    Returns:
        Seconds by section.
    """
    del model, hints
    graph = session._loaded()
    names = SECTIONS if graph.rule is not None else ("fwd",)
    ones = [torch.ones(graph.traced.outputs[i].shape) for i in graph.traced.starts]
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(n_iterations + _WARMUP):
        for name in names:
            gradients = ones if name == "bckwd" else None
            started = time.perf_counter()
            session.run(inputs, section_types=[name], grad_of_outputs=gradients)
            _finished(graph)
            if index >= _WARMUP:
                times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(samples) for name, samples in times.items()}
    for name, seconds in medians.items():
        print(f"Section {name}: median {seconds * 1e3:.3f} ms")
    return medians


def _timed(run: Callable[[], Any], iterations: int, min_duration: float) -> list[float]:
    graph = session._loaded()
    for _ in range(_WARMUP):
        run()
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < max(1, iterations) or time.perf_counter() - begun < min_duration:
        started = time.perf_counter()
        run()
        _finished(graph)
        times.append(time.perf_counter() - started)
    return times


def _finished(graph: LoadedGraph) -> None:
    if graph.session.device.type == "cuda":
        torch.cuda.synchronize(graph.session.device)


def _compiled(graph: LoadedGraph) -> dict[str, Any]:
    report = graph.report
    return {
        "pef": report.pef,
        "target": report.target,
        "executable": report.executable,
        "origin": report.origin,
        "nodes": {p.name: len(p.graph.graph.nodes) for p in graph.session.executable.programs},
    }


def _print(result: dict[str, Any]) -> None:
    latency = result["latency_s"]
    print(
        f"Target {result['target']}: latency {latency['median'] * 1e3:.3f} ms (fastest "
        f"{latency['fastest'] * 1e3:.3f} ms), {result['samples_per_s']:.1f} samples/s, "
        f"{result['iterations']} iterations of {result['batch_size']} samples"
    )


def _save(path: str | None, content: dict[str, Any]) -> None:
    if path:
        text = json_format.dumps(content, indent=1)
        atomic.write_text(Path(path), text)
