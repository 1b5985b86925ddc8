"""CosmicTagger's network in float32, plain and on target cpu: how far from double precision?

python benchmarks/exactness.py                            a21, generated events, downsample 2
python benchmarks/exactness.py --events FILE --record

A deep network with batch norms amplifies the rounding of float32, so that two right programs differ
in the second digit of a gradient. What can be asked is that neither is farther from the truth.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
import torch

ROOT = Path(__file__).resolve().parent.parent
# Not the folder of this file: it has the name of the package.
sys.path[0] = str(ROOT / "src")

BATCH = 2
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "decoupled": False}


def main() -> int:
    """Measure and print; with --record also keeps the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--network", default="a21", help="a network by name (default a21)")
    parser.add_argument("--events", type=Path, help="a larcv3 file; else events are generated")
    parser.add_argument("--downsample", type=int, default=2, help="2: 320 x 512 (default)")
    parser.add_argument("--steps", type=int, default=3, help="training steps (default 3)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default 1)")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = measure(options)
    for way in ("eager", "abele"):
        losses = ", ".join(f"{value:.1e}" for value in result["loss_errors"][way])
        print(f"{way:6s} errors of losses {losses}; {result['gradient_errors'][way]}")
    if options.record:
        theme = f"exactness_{options.network}_ds{options.downsample}"
        print(f"record: {harness.write_record(theme, result).relative_to(ROOT)}")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return relative errors of losses, and of the gradients of the first step."""
    from cosmictagger.config.network import named
    from cosmictagger.measures import Loss
    from cosmictagger.models import LossInForward, build

    batches = _batches(options)
    torch.manual_seed(0)
    height, width = batches[0][0].shape[2:]
    network = build(named(options.network), (height, width))
    model = LossInForward(network, Loss("light"))
    by_way = {"abele": _abele(model, batches), "eager": _eager(copy.deepcopy(model), batches)}
    exact_losses, exact = _eager(copy.deepcopy(model).double(), batches)
    return {
        "environment": harness.environment(),
        "events": options.events.name if options.events else "generated",
        "losses": exact_losses,
        "loss_errors": {
            way: [abs(a / b - 1) for a, b in zip(losses, exact_losses, strict=True)]
            for way, (losses, _) in by_way.items()
        },
        "gradient_errors": {way: _errors(grads, exact) for way, (_, grads) in by_way.items()},
    }


def _errors(grads: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> dict[str, float]:
    """Of all gradients as one vector, and the median and worst of single parameters."""
    # A bias before a batch norm has no gradient but for rounding.
    largest = max(value.norm() for value in exact.values())
    real = {name: value for name, value in exact.items() if value.norm() > 1e-9 * largest}
    single = sorted(
        ((grads[name].double() - value).norm() / value.norm()).item()
        for name, value in real.items()
    )
    both = [torch.cat([each[name].double().flatten() for name in real]) for each in (grads, exact)]
    whole = ((both[0] - both[1]).norm() / both[1].norm()).item()
    numbers = {"whole": whole, "median": statistics.median(single), "worst": single[-1]}
    return {name: float(f"{value:.2e}") for name, value in numbers.items()}


def _batches(options: argparse.Namespace) -> list[tuple[torch.Tensor, torch.Tensor]]:
    from cosmictagger.data import EventLoader
    from cosmictagger.data.generator import generate

    with tempfile.TemporaryDirectory() as folder:
        events = options.events
        if events is None:
            events = Path(folder) / "events.h5"
            generate(events, BATCH * options.steps)
        with EventLoader(
            events, batch_size=BATCH, downsample=options.downsample, across_epochs=True, prefetch=0
        ) as loader:
            batches: list[tuple[torch.Tensor, torch.Tensor]] = []
            while len(batches) < options.steps:
                batches.extend((batch.image, batch.label) for batch in loader)  # type: ignore[misc]
    return batches[: options.steps]


def _eager(model: torch.nn.Module, batches: list) -> tuple[list[float], dict[str, torch.Tensor]]:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    kind = next(model.parameters()).dtype
    losses, gradients = [], {}
    for image, label in batches:
        optimizer.zero_grad()
        *_, loss = model(image.to(kind), label)
        loss.backward()
        gradients = gradients or {
            name: parameter.grad.clone()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def _abele(model: torch.nn.Module, batches: list) -> tuple[list[float], dict[str, torch.Tensor]]:
    from abele import build, get_target
    from abele.capture import capture
    from abele.capture.losses import mark_loss
    from abele.runtime.session import Session
    from abele.step.config import StepConfig
    from abele.step.update_rules import Group, UpdateRule
    from abele.trace.module_state import ModuleState

    state, config = ModuleState.of(model), StepConfig(training=True)
    values = {"lr": 3e-4, **ADAM}
    group = Group(params=tuple(state.params), values=values, variable=frozenset({"lr"}))
    rule = UpdateRule(kind="adam", groups=(group,))

    def forward(inputs: Any) -> list[torch.Tensor]:
        *logits, loss = model(*inputs)
        mark_loss(loss)  # the network has one for each plane, and this is their sum
        return [*logits, loss]

    captured = capture(forward, model, batches[0], config, rule)
    executable, record = build(captured.programs, config, target=get_target("cpu"), cache=None)
    if record.lowerings["step"].name != "op_by_op":
        raise RuntimeError("The network does not run operator by operator; nothing to compare.")
    slots = rule.initial_state(state.params)
    session = Session(executable, config, state.params, state.buffers, slots, rule.hyper())
    losses, gradients = [], {}
    for image, label in batches:
        losses.append(session.step([image, label])[-1].item())
        # After the first step, Adam's first moment is a tenth of the gradient.
        gradients = gradients or {
            name.removesuffix(".exp_avg"): value / (1 - ADAM["beta1"])
            for name, value in session.read_optimizer_state().items()
            if name.endswith(".exp_avg")
        }
    return losses, gradients


if __name__ == "__main__":
    sys.exit(main())
