"""The port of ``examples/pytorch_gpu.py`` does what the hand-written ``pytorch_ipu.py`` does.

The original, its port and the program that was ported by hand run in this process, on target
``reference``. What is equal, and what the hand-written one does more, is the list in
``docs/reference/port_codes.md``.
"""

import contextlib
import dataclasses
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from abele.port import files
from abele.port.engine import port
from abele.runtime.observers import Observer
from abele.runtime.session import of_new_sessions

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ARGUMENTS = (
    *("--source", "built-in", "--train-samples", "164", "--test-samples", "100"),
    *("--epochs", "2", "--seed", "1"),
)
UPDATES = 20  # of 2 epochs with 10 whole batches; 4 rows are left out
ROWS = [[16, 1, 28, 28], [16]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What a program did: its losses, what it printed, its weights, and its programs."""

    losses: list[float]
    printed: list[str]
    weights: dict[str, torch.Tensor]
    programs: list["Calls"]


class Calls(Observer):
    """What a wrapper's program was called with."""

    def __init__(self, session: Any):
        self.config = session.config
        self.calls, self.updates, self.inputs, self.outputs = 0, 0, [], []

    def on_inputs(self, inputs):
        self.calls += 1
        self.inputs = [[*each.shape] for each in inputs]

    def on_update(self, step):
        self.updates += 1

    def on_outputs(self, outputs):
        self.outputs = [[*each.shape] for each in outputs]


def loaded(path: Path, name: str) -> Any:
    """A program as a module of its own."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(path: Path, patch: pytest.MonkeyPatch) -> Run:
    """Run a program in the present folder."""
    program = loaded(path, f"program_{path.parent.name}_{path.stem}")
    models, programs = [], []

    class Noted(program.GarmentNet):
        def __init__(self):
            super().__init__()
            models.append(self)

    def watched(session):
        programs.append(Calls(session))
        return programs[-1]

    patch.setattr(program, "GarmentNet", Noted)
    text = io.StringIO()
    with of_new_sessions(watched), contextlib.redirect_stdout(text):
        program.main([*ARGUMENTS, "--losses", "losses.json"])
    (model,) = models
    torch.save(model.state_dict(), "weights.pt")
    return Run(
        losses=json.loads(Path("losses.json").read_text()),
        printed=text.getvalue().splitlines(),
        weights=torch.load("weights.pt", weights_only=True),
        programs=programs,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The original, its port, and the hand-written port."""
    script = EXAMPLES / "pytorch_gpu.py"
    folder = tmp_path_factory.mktemp("pair")
    files.write(port(files.read(script)), script, folder / "ported")
    paths = (script, folder / "ported" / script.name, EXAMPLES / "pytorch_ipu.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABELE_TARGET", "reference")
        patch.chdir(folder)
        return [run(path, patch) for path in paths]


@pytest.mark.parametrize("other", [1, 2], ids=["port", "by hand"])
def test_losses_accuracy_and_checkpoint_are_those_of_the_original(runs, other):
    original, ported = runs[0], runs[other]
    assert len(original.losses) == UPDATES
    assert ported.losses == original.losses
    assert original.printed[-1].startswith("Test accuracy: ")
    assert ported.printed == original.printed
    assert ported.weights.keys() == original.weights.keys()
    for name, value in original.weights.items():
        assert torch.equal(ported.weights[name], value), name


def test_both_ports_make_the_same_calls_with_the_same_options(runs):
    original, ported, by_hand = (each.programs for each in runs)
    assert not original
    assert [each.config for each in ported] == [each.config for each in by_hand]
    assert [each.config.training for each in ported] == [True, False]
    counts = [(20, 20), (6, 0)]
    for training, inference in (ported, by_hand):
        assert [(each.calls, each.updates) for each in (training, inference)] == counts
        assert (training.inputs, inference.inputs) == (ROWS, ROWS[:1])
        assert inference.outputs == [[16, 10]]


def test_the_hand_written_one_also_returns_scores_of_each_training_batch(runs):
    _, ported, by_hand = (each.programs for each in runs)
    assert ported[0].outputs == [[]]
    assert by_hand[0].outputs == [[16, 10], []]
