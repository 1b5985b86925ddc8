"""Which of the examples of PyTorch are ported, with which arguments, and what should come of it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Example:
    """One program.

    Attributes:
        script: its place in the checkout.
        asked: what should come of it: ``automatic``, ``notes`` or ``blocked``.
        arguments: with which it trains on this processor; None if it is not run.
        processes: how many it trains in, and instances of its port.
        edits: made before it is ported: a file, a pattern, and what takes its place.
        notes: the same in words.
    """

    script: str
    asked: str
    arguments: str | None = None
    processes: int = 1
    edits: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The script without what says nothing."""
        return self.script.removesuffix(".py").removesuffix("/main")


_STYLE = (
    "train --dataset pictures --style-image style/0.png --save-model-dir models "
    "--epochs 1 --batch-size 2 --image-size 64 --cuda 0"
)
_DDP = "distributed/ddp-tutorial-series"


def _in_processes(name: str) -> Example:
    """Return an example of several processes, compared in two."""
    return Example(
        script=f"{_DDP}/{name}.py",
        asked="notes",
        arguments="1 1",
        processes=2,
        edits=(
            (
                f"{name}.py",
                r"(F\.cross_entropy|torch\.nn\.CrossEntropyLoss\(\))",
                "torch.nn.functional.mse_loss",
            ),
        ),
        notes=("with one class, its loss and gradients are always 0; those of `mse_loss` are not",),
    )


EXAMPLES = (
    Example(script="mnist/main.py", asked="automatic", arguments="--batch-size 16"),
    Example(script="mnist_rnn/main.py", asked="automatic", arguments="--batch-size 16"),
    Example(
        script="super_resolution/main.py",
        asked="automatic",
        arguments="--upscale_factor 4 --batchSize 2 --threads 0 --nEpochs 1",
    ),
    Example(script="siamese_network/main.py", asked="automatic", arguments="--batch-size 4"),
    Example(script="regression/main.py", asked="automatic", arguments=""),
    Example(script="imagenet/main.py", asked="notes", arguments="--dummy -j 0 -b 2 --seed 1"),
    Example(
        script="fast_neural_style/neural_style/neural_style.py",
        asked="notes",
        arguments=_STYLE,
    ),
    Example(script=f"{_DDP}/single_gpu.py", asked="notes", arguments="1 1"),
    _in_processes("multigpu"),
    _in_processes("multigpu_torchrun"),
    _in_processes("multinode"),
    Example(script="word_language_model/main.py", asked="blocked"),
    Example(script="dcgan/main.py", asked="blocked"),
    Example(script="gcn/main.py", asked="blocked"),
    Example(script="time_sequence_prediction/train.py", asked="blocked"),
    Example(script="mnist_hogwild/main.py", asked="blocked"),
    Example(script="reinforcement_learning/reinforce.py", asked="blocked"),
    Example(script="reinforcement_learning/actor_critic.py", asked="blocked"),
)
