"""Inference of networks: abele beside plain PyTorch, ONNX Runtime and OpenVINO.

python benchmarks/inference.py --threads 2 --batch 1 --record

The peers (pip install onnx onnxruntime openvino) read the ONNX file of the same network; those that
are missing are left out. --compile adds torch.compile with frozen weights, which compiles for
minutes. Ways run in turns in one process, in float32.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import torch
from models import bottlenecks, dense, recurrent, separable, unet
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "examples")]

from benchmarks.models import gpt, vit  # noqa: E402 - they import each other by this name

import abele  # noqa: E402 - after the path above, so that a checkout needs no installation
import poptorch  # noqa: E402
from garment_model import GarmentNet  # noqa: E402

# Of the largest score; plain PyTorch's own error is a hundredth of it.
_TOLERANCE = 1e-4
_PAUSE_S = 0.3
_WORDS, _TOKENS, _WIDTH, _HEADS, _LAYERS = 30522, 128, 768, 12, 12  # BERT-base's


class Scores(nn.Module):
    """The scores of a network whose own forward returns the loss."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, ...] -> [B, classes, ...]."""
        return self.network.scores(x)


class Encoder(nn.Module):
    """An encoder of BERT-base's size, with the norm before each part."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.positions = nn.Parameter(torch.randn(_TOKENS, _WIDTH) * 0.02)
        blocks = (gpt.Block(_WIDTH, _HEADS, causal=False) for _ in range(_LAYERS))
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(_WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """[B, 128] -> [B, 128, 768]."""
        return self.norm(self.blocks(self.words(words) + self.positions))


def _images(edge: int) -> Callable[[int], torch.Tensor]:
    return lambda size: torch.randn(size, 3, edge, edge)


#: A network, and a batch of so many rows.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "resnet50": (lambda: Scores(bottlenecks.resnet50()), _images(224)),
    "resnet18": (lambda: Scores(bottlenecks.resnet18()), _images(224)),
    "mobilenet": (lambda: Scores(separable.mobilenet()), _images(224)),
    "vit_s": (lambda: Scores(vit.ViT()), _images(224)),
    "encoder": (Encoder, lambda size: torch.randint(0, _WORDS, (size, _TOKENS))),
    "mlp": (dense.small, lambda size: torch.randn(size, 64)),
    "lstm": (lambda: Scores(recurrent.Recurrent()), lambda size: recurrent.batch(size)[0]),
    "introduction": (GarmentNet, lambda size: torch.randn(size, 1, 28, 28)),
    "unet": (lambda: Scores(unet.UNet()), _images(unet.EDGE)),
}


def ways(
    model: nn.Module, wrapped: Callable[..., Any], x: torch.Tensor, threads: int
) -> dict[str, Callable[[], Any]]:
    """Return a call of each way that is installed."""
    decorated = torch.no_grad()(abele.compile(start="wait")(lambda x: model(x)))
    made: dict[str, Callable[[], Any]] = {
        "eager": torch.inference_mode()(lambda: model(x)),
        "abele": lambda: wrapped(x),
        "abele.compile": functools.partial(decorated, x),
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


def frozen(model: nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    """Return a call of a network by torch.compile, whose weights are constants of the code."""
    inductor: Any = importlib.import_module("torch._inductor.config")
    inductor.freezing = True
    compiled = torch.compile(model)
    return torch.no_grad()(lambda: compiled(x))


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
    """Return the rates of one network, and the errors of each way's scores.

    Raises:
        RuntimeError: scores are not those of the network in float64.
    """
    torch.manual_seed(0)
    network, batch = NETWORKS[name]
    model, x = network().eval(), batch(options.batch)
    wrapped: Any = poptorch.inferenceModel(
        model, poptorch.Options().showCompilationProgressBar(False)
    )
    made = ways(model, wrapped, x, options.threads)
    if options.compile:
        made["torch.compile"] = frozen(model, x)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double() if x.is_floating_point() else x)
    errors = {}
    for way, call in made.items():
        error = (torch.as_tensor(call()) - exact).abs().max() / exact.abs().max()
        errors[way] = float(f"{error:.1e}")
        if not error <= _TOLERANCE:
            raise RuntimeError(f"{name}: scores of {way} differ from float64's by {error:.1e}.")
    one = options.threads == 1
    rates = (
        cpu_rates(made, options.windows)
        if one
        else harness.steps_per_second(made, windows=options.windows, pause_s=_PAUSE_S)
    )
    clock = "processor time" if one else "time"
    chosen = dataclasses.asdict(wrapped.build_record.lowerings["forward"])
    return {"per_s": rates, "clock": clock, "error": errors, "lowering": chosen, **_over(rates)}


def _over(rates: dict[str, Any]) -> dict[str, float]:
    peers = [rates[way]["median"] for way in ("onnxruntime", "openvino") if way in rates]
    over = harness.ratios(rates, "eager")
    best = {"over_the_better": round(rates["abele"]["median"] / max(peers), 3)} if peers else {}
    if "torch.compile" in rates:
        best["over_compile"] = harness.ratios(rates, "torch.compile")["abele"]
    return {"over_eager": over["abele"], **best}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    harness.add_arguments(parser)
    parser.add_argument("--batch", type=int, default=1, help="rows of a call (default 1)")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
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
