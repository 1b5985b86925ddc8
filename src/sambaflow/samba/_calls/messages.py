"""Output of the commands, and notes on options without effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from abele.capture.sections import Sectioned
from sambaflow.logging import hint

# Requests that a program may make and that have no meaning here.
_HINTS = frozenset(
    {
        "init_output_grads", "squeeze_bs_dim", "get_output_grads", "app_dir", "mapping",
        "dev_mode", "distlearn_config", "data_parallel_mode", "transfer_device", "config_dict",
        "verify_graph", "reduce_on_rdu", "num_tiles", "n_chips", "tensor_parallel",
    }
)  # fmt: skip


def say(text: str) -> None:
    print(f"[sambaflow] {text}", flush=True)


def say_hints(where: str, hints: Mapping[str, Any]) -> None:
    for name, value in hints.items():
        if name in _HINTS or name == "metadata":
            if value and name not in ("config_dict", "app_dir"):
                hint(f"{where}({name}=...)")
        else:
            hint(f"{where}({name}=...)", "this package knows no such option")


def say_traced(traced: Sectioned, seconds: float) -> None:
    programs = ", ".join(
        f"{p.name} ({len(p.graph.graph.nodes)} nodes)" for p in traced.captured.programs
    )
    say(f"Captured in {seconds:.1f} s: {programs}")
    if traced.starts:
        kinds = [traced.outputs[i].loss for i in traced.starts]
        origin = "with gradient one" if any(kinds) else "with gradients of the caller"
        starts = ", ".join(f"output_{i}" for i in traced.starts)
        say(f"Backward starts from {starts} {origin}")
