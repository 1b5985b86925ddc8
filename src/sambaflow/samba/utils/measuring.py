"""Latency and throughput of a loaded program on synthetic data."""

from __future__ import annotations

import json as json_format
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from abele.storage import atomic
from sambaflow.samba._session.core import session
from sambaflow.samba._session.loaded import SECTIONS, LoadedGraph

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
        n_chips: accepted.
        inference: only forward.
        run_graph_only: accepted: nothing else is in the measured time anyway.
        n_iterations: runs that are counted; three more come before.
        json: file for the numbers.
        compiled_stats_json: file for what was compiled: target, executable, programs.
        data_parallel: as for ``session.run``.
        reduce_on_rdu: as for ``session.run``.
        use_sambaloader: accepted.
        min_duration: go on until so many seconds have passed.
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
    """Print the median time of each section.

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
