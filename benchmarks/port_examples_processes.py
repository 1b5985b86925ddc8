"""Compares a program of torch.distributed with its port under poprun, update by update."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

INSTANCE = Path(__file__).resolve().parent / "port_examples_instance.py"

#: What one process wrote down.
_Updates = dict[str, Any]


def compared(
    original: Path, port: Path, arguments: Sequence[str], steps: int, count: int, limit_s: float
) -> dict[str, Any]:
    """Run both in as many processes, and compare losses and parameters of each, bit for bit.

    Args:
        original: the script.
        port: what became of it.
        arguments: of both.
        steps: updates to compare.
        count: processes, and instances with one replica each.
        limit_s: how long both may take, in seconds.

    Returns:
        What ``port_examples.py`` says of a comparison; ``error`` if there is none.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{kind}{{}}.pt" for kind in ("original", "port")]
        watch = [sys.executable, str(INSTANCE)]
        places = [
            {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
            for rank in range(count)
        ]
        poprun = [
            str(Path(sys.executable).parent / "poprun"),
            *("--num-instances", str(count), "--num-replicas", str(count)),
        ]
        of_original = [files[0], str(steps), "original", str(original.resolve()), *arguments]
        of_port = [files[1], str(steps), "port", str(port.resolve()), *arguments]
        for kind in ("of_original", "of_port"):  # a snapshot of one is not for the other
            Path(folder, kind).mkdir()
        problem = _run(
            [[*watch, *of_original]] * count, limit_s, f"{folder}/of_original",
            [{**each, "STORE": f"{folder}/store"} for each in places],
        ) or _run(
            [[*poprun, *watch, *of_port]], limit_s, f"{folder}/of_port",
            [{"ABELE_TARGET": "reference"}],
        )  # fmt: skip
        if problem:
            return {"error": problem}
        made = [
            [torch.load(file.format(rank), weights_only=True) for rank in range(count)]
            for file in files
        ]
    return {**_difference(made[0], made[1], steps), "check_s": time.monotonic() - began}


def _run(
    commands: list[list[str]], limit_s: float, folder: str, environments: list[dict[str, str]]
) -> str | None:
    """Run commands at the same time in a folder; what the first that fails says, if one does."""
    running = [
        subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        said = [process.communicate(timeout=limit_s)[0] for process in running]
    except subprocess.TimeoutExpired:
        return f"it takes more than {limit_s:g} s"
    finally:
        for process in running:
            process.kill()
    for process, text in zip(running, said, strict=True):
        if process.returncode:
            return (text.strip().splitlines() or ["it fails without a word"])[-1]
    return None


def _difference(originals: list[_Updates], ports: list[_Updates], steps: int) -> dict[str, Any]:
    """Return the first difference of any process, and the count of equal losses."""
    pairs = list(zip(originals, ports, strict=True))
    made = min(steps, *(len(each["losses"]) for each in (*originals, *ports)))
    equal = [all(a["losses"][i] == b["losses"][i] for a, b in pairs) for i in range(made)]
    difference = None if made == steps else f"{made} updates were made"
    for step in range(made - 1, -1, -1):
        for rank, (one, other) in enumerate(pairs):
            weights = zip(one["weights"][step], other["weights"][step], strict=True)
            if not all(torch.equal(a, b) for a, b in weights):
                difference = f"parameters of process {rank} after step {step + 1}"
        if not equal[step]:
            difference = f"loss of step {step + 1}"
    return {
        "equal_losses": sum(equal),
        "tensors": sum(len(each["weights"][0]) for each in originals),
        "difference": difference,
        "notes": [
            f"{len(pairs)} processes; the original over gloo on the host, with the port's rows"
        ],
    }
