"""Inference of image networks: abele beside plain PyTorch, ONNX Runtime and OpenVINO.

python benchmarks/inference.py --threads 2 --batch 1 --record

The peers (pip install onnx onnxruntime openvino) read the ONNX file of the same network; those that
are missing are left out. Ways run in turns in one process, in float32.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from models import bottlenecks, separable
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation

# Of the largest score; plain PyTorch's own error is a hundredth of it.
_TOLERANCE = 1e-4


class Scores(nn.Module):
    """The scores of a network whose own forward returns the loss."""

    def __init__(self, network: separable.Classifier):
        super().__init__()
        self.layers, self.head = network.layers, network.head

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] -> [B, classes]."""
        return self.head(self.layers(images).mean((2, 3)))


NETWORKS: dict[str, Callable[[], separable.Classifier]] = {
    "resnet18": bottlenecks.resnet18,
    "resnet50": bottlenecks.resnet50,
    "mobilenet": separable.mobilenet,
}


def ways(model: nn.Module, x: torch.Tensor, threads: int) -> dict[str, Callable[[], Any]]:
    """Return a call of each way that is installed."""
    wrapped = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))
    made: dict[str, Callable[[], Any]] = {
        "eager": torch.inference_mode()(lambda: model(x)),
        "abele": lambda: wrapped(x),
    }
    installed = [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name)]
    with tempfile.TemporaryDirectory() as folder:
        path, given = f"{folder}/network.onnx", x.numpy()
        if installed:
            torch.onnx.export(model, (x,), path, dynamo=False, input_names=["x"])
        if "onnxruntime" in installed:
            peer: Any = importlib.import_module("onnxruntime")
            settings = peer.SessionOptions()
            settings.intra_op_num_threads = threads
            session = peer.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
            made["onnxruntime"] = lambda: session.run(None, {"x": given})[0]
        if "openvino" in installed:
            peer = importlib.import_module("openvino")
            settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads}
            settings["INFERENCE_PRECISION_HINT"] = "f32"
            core = peer.Core()
            request = core.compile_model(path, "CPU", settings).create_infer_request()
            made["openvino"] = lambda: request.infer([given], share_inputs=True)[0]
    return made


def cpu_rates(made: dict[str, Callable[[], Any]], windows: int) -> dict[str, Any]:
    """Return calls per second of processor time, which other processes' turns do not change."""
    rates: dict[str, list[float]] = {name: [] for name in made}
    counts = {name: harness.calibrate(call, 0.2) for name, call in made.items()}
    for _ in range(windows):
        for name, call in made.items():
            began = time.process_time()
            for _ in range(counts[name]):
                call()
            rates[name].append(counts[name] / (time.process_time() - began))
    return {name: harness.summary(each, counts[name]) for name, each in rates.items()}


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the rates of one network, each way's scores compared with plain PyTorch's.

    Raises:
        RuntimeError: scores differ.
    """
    torch.manual_seed(0)
    model, x = Scores(NETWORKS[name]()).eval(), torch.randn(options.batch, 3, 224, 224)
    made = ways(model, x, options.threads)
    expected = made["eager"]()
    for way, call in made.items():
        error = (torch.as_tensor(call()) - expected).abs().max() / expected.abs().max()
        if not error <= _TOLERANCE:
            raise RuntimeError(f"{name}: scores of {way} differ by {error:.1e}.")
    one = options.threads == 1
    rates = (
        cpu_rates(made, options.windows)
        if one
        else harness.steps_per_second(made, windows=options.windows)
    )
    return {"per_s": rates, "clock": "processor time" if one else "time", **_over(rates)}


def _over(rates: dict[str, Any]) -> dict[str, float]:
    peers = [rates[way]["median"] for way in ("onnxruntime", "openvino") if way in rates]
    over = harness.ratios(rates, "eager")
    best = {"over_the_better": round(rates["abele"]["median"] / max(peers), 3)} if peers else {}
    return {"over_eager": over["abele"], **best}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--batch", type=int, default=1, help="images of a call (default 1)")
    parser.add_argument("--only", default=",".join(NETWORKS), help="networks, commas between")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    for name in options.only.split(","):
        results[name] = measure(name, options)
        medians = {way: round(each["median"], 2) for way, each in results[name]["per_s"].items()}
        print(name, medians, {k: v for k, v in results[name].items() if k != "per_s"}, flush=True)
    if options.record:
        result = {"environment": harness.environment(), "batch": options.batch, "networks": results}
        print(f"record: {harness.write_record('inference', result).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
