# ruff: noqa: E501 (lines of programs)
"""No mistake in the branches of a new mode goes unnoticed: each changes what is printed, or stops."""

import shutil
from pathlib import Path

import pytest

import poptorch
from abele.port import files
from abele.port.engine import port
from helpers.folder_program import printed

TRAINER = Path(__file__).parent / "programs" / "tagger" / "main.py"

MUTATIONS = {
    "the module runs, not its program": ("program=self.training_model", "program=ModelWithLoss(self._net, self.loss_calculator)"),
    "the program of another model": ("trainingModel(\n            ModelWithLoss(self._net,", "trainingModel(\n            ModelWithLoss(PlaneNet(),"),
    "another loss": ("loss = self.loss_calculator(labels_image, logits_image)\n        return", "loss = 2 * self.loss_calculator(labels_image, logits_image)\n        return"),
    "a validation that trains": ("program=self.evaluation_model", "program=self.training_model"),
    "a validation with the first weights": ("inferenceModel(\n            ModelWithLoss(self._net,", "inferenceModel(\n            ModelWithLoss(__import__('copy').deepcopy(self._net),"),
    "an inference with new weights": ("ModelWithoutLoss(self._net)", "ModelWithoutLoss(PlaneNet())"),
    "the program is not told of rates": ("                self.training_model.setOptimizer(self._opt)\n", "                pass\n"),
    "another rate": ("poptorch.optim.Adam(self._net.parameters(), 1.0)", "poptorch.optim.Adam(self._net.parameters(), 0.99)"),
    "another batch": ('program(minibatch_data["image"], labels_image)', 'program(minibatch_data["image"].flip(0), labels_image)'),
    "a mode without a device": ("in (ComputeMode.CPU, ComputeMode.IPU)", "is ComputeMode.CPU"),
    "gradients on the host, too": ("!= ComputeMode.IPU:\n                    loss.backward()", "== ComputeMode.IPU:\n                    loss.backward()"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ported") / "out"
    files.write(port(files.read(TRAINER)), TRAINER, folder)
    return folder


@pytest.fixture
def run(tmp_path, monkeypatch):
    """What a trainer prints in a mode: first it trains, then it goes on without training."""

    def run(script, mode):
        given = f"run.compute_mode={mode}", f"output_dir={tmp_path / mode}"
        train = "run.iterations=5", "run.aux_iterations=2", "mode.checkpoint_iteration=5"
        infer = "run.iterations=1", "mode.name=inference"
        return "".join(printed(script, (*given, *more), monkeypatch) for more in (train, infer))

    return run


@pytest.fixture(scope="module")
def expected():
    return {}


def some():
    """The right port, and mistakes, of which each second runs where long tests do not."""
    yield None
    for number, name in enumerate(MUTATIONS):
        yield pytest.param(name, marks=[pytest.mark.long] if number % 2 else [])


@pytest.mark.parametrize("name", [*some()])
def test_a_mistake_is_seen(name, ported, run, expected, tmp_path):
    if not expected:
        expected["printed"] = run(TRAINER, "CPU")
    if name is None:
        assert run(ported / "main.py", "IPU") == expected["printed"]
        return
    right, wrong = MUTATIONS[name]
    broken = shutil.copytree(ported, tmp_path / "broken")
    text = (broken / "trainer.py").read_text()
    assert text.count(right) == 1, right
    (broken / "trainer.py").write_text(text.replace(right, wrong))
    try:
        different = run(broken / "main.py", "IPU") != expected["printed"]
    except (poptorch.Error, RuntimeError, ValueError, UserWarning) as error:
        different = bool(str(error))
    assert different
