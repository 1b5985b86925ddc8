# ruff: noqa: E501 (lines of programs)
"""A trainer with a switch of compute modes: every edit that the guides list, and what it computes."""

from pathlib import Path

import pytest
import torch

import poptorch
from abele.errors import CheckError
from abele.port import files
from abele.port.check import check
from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.modes.arguments import arguments_of_port
from abele.port.project import Project
from abele.port.source import Source
from helpers.folder_program import printed
from helpers.instances import run
from helpers.warm_python import python

TRAINER = Path(__file__).parent / "programs" / "tagger" / "main.py"

#: What guides for porting such a trainer by hand have people edit: to one IPU, then to instances.
#: Each with the line of the program, and the code of what is said of it.
EDITS = {
    "one: a member of ComputeMode": ("settings.py", "class ComputeMode(Enum):", "ABP901"),
    "one: imports that may fail": ("trainer.py", "import os", "ABP902"),
    "one: the model is wrapped for training": ("trainer.py", "self._raw_net = PlaneNet()", "ABP301"),
    "one: the model is wrapped for inference": ("trainer.py", "logits_image, labels_image = self.forward_pass(minibatch_data)", "ABP502"),
    "one: RMSprop of poptorch": ("trainer.py", "self._opt = torch.optim.RMSprop(self._net.parameters(), 1.0, eps=1e-4)", "ABP401"),
    "one: Adam of poptorch": ("trainer.py", "self._opt = torch.optim.Adam(self._net.parameters(), 1.0)", "ABP401"),
    "one: the forward pass takes the loss and the labels along": ("trainer.py", "def forward_pass(self, minibatch_data, net=None):", "ABP903"),
    "one: the forward pass returns what the program returns": ("trainer.py", "if net is None:", "ABP903"),
    "one: the training step takes the loss from the forward pass": ("trainer.py", "logits_image, labels_image = self.forward_pass(minibatch_data)", "ABP303"),
    "one: the training step computes no loss": ("trainer.py", "loss = self.loss_calculator(labels_image, logits_image)", "ABP303"),
    "one: the validation step takes the loss from the forward pass": ("trainer.py", "logits_image, labels_image = self.forward_pass(minibatch_data, net=val_net)", "ABP502"),
    "one: the validation step computes no loss": ("trainer.py", "loss = self.loss_calculator(labels_image, logits_image)", "ABP904"),
    "one: the network's forward has arguments for loss and labels": ("network.py", "def forward(self, images):", "ABP908"),
    "one: the network's forward computes the loss": ("trainer.py", "self.loss_calculator = LossCalculator()", "ABP301"),
    "several: imports that may fail": ("base.py", "import contextlib", "ABP902"),
    "several: init and the instance's number": ("trainer.py", "def __init__(self, args):", "ABP801"),
    "several: the number in the model's file": ("base.py", 'name = os.path.join(folder, "model-{}.ckpt".format(self._global_step))', "ABP807"),
    "several: a method that logs in one instance": ("base.py", 'logger.info(f"{kind} step {self._global_step} metrics: {values}")', "ABP806"),
    "several: options of popdist, a common seed, replicas": ("trainer.py", '"""Training, validation and inference of the network."""', "ABP808"),
}  # fmt: skip


@pytest.fixture(scope="module")
def result():
    return port(files.read(TRAINER), popdist=True)


@pytest.fixture(scope="module")
def ported(tmp_path_factory, result):
    folder = tmp_path_factory.mktemp("ported") / "out"
    files.write(result, TRAINER, folder)
    return folder / "main.py"


@pytest.mark.parametrize("edit", EDITS)
def test_every_edit_of_the_guides_has_a_finding(edit, result):
    path, text, code = EDITS[edit]
    assert (path, text, code) in {(each.path, each.text, each.code) for each in result.findings}


def test_the_decorator_that_a_guide_edits_has_a_finding():
    text = (
        "import hydra\n\n\n"
        '@hydra.main(version_base=None, config_path="config", config_name="config")\n'
        "def main(args):\n    print(args)\n"
    )
    (finding,) = port(Project([Source("run.py", text)])).findings
    assert (finding.line, finding.code, finding.verdict) == (4, "ABP910", Verdict.MATCH)


def test_somebody_has_to_see_that_instances_get_different_events(result):
    (manual,) = [each for each in result.findings if each.verdict is Verdict.MANUAL]
    assert manual.code == "ABP804"
    assert manual.text == "minibatch_data = self._train_data.fetch_next_batch()"
    alone = port(files.read(TRAINER))
    assert alone.verdict is Verdict.MODIFIED
    assert "popdist" not in "".join(alone.after.values())


def test_porting_the_port_changes_nothing(ported, result):
    again = port(files.read(ported), popdist=True)
    assert again.after == {name: result.after[name] for name in again.after}
    assert [each.code for each in again.findings] == ["ABP900"]


def test_the_old_mode_prints_and_writes_what_it_did(ported, tmp_path, monkeypatch):
    arguments = "run.compute_mode=CPU", "run.iterations=11"
    for name, script in (("before", TRAINER), ("after", ported)):
        folder = tmp_path / name
        texts = [
            printed(script, (*arguments, f"output_dir={folder}"), monkeypatch) for _ in range(2)
        ]
        (folder / "log.txt").write_text("".join(texts))
    before, after = tmp_path / "before", tmp_path / "after"
    assert len((before / "log.txt").read_text().split()) > 100
    assert "Restored step 10" in (before / "log.txt").read_text()
    for path in before.rglob("*.txt"):
        assert (after / path.relative_to(before)).read_text() == path.read_text()
    assert sorted(each.name for each in after.rglob("*")) == sorted(
        each.name for each in before.rglob("*")
    )


def test_the_new_mode_uses_its_programs_and_prints_the_same(ported, tmp_path, monkeypatch):
    def lines(script, mode, **settings):
        more = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
        arguments = [f"run.compute_mode={mode}", f"output_dir={tmp_path / mode}", *more]
        return printed(script, arguments, monkeypatch)

    runs = (
        {"run__iterations": 11},
        {"run__iterations": 3},
        {"run__iterations": 2, "mode__name": "inference"},
    )
    expected = [lines(TRAINER, "CPU", **settings) for settings in runs]
    calls, call = [], poptorch.PoplarExecutor.__call__

    def counted(self, *args, **kwargs):
        calls.append(self)
        return call(self, *args, **kwargs)

    monkeypatch.setattr(poptorch.PoplarExecutor, "__call__", counted)
    monkeypatch.setattr(torch.Tensor, "backward", None)  # nothing trains on the host
    assert [lines(ported, "IPU", **settings) for settings in runs] == expected
    assert "Restored step 10" in expected[1]
    # 11 steps and 2 validations, 3 steps, 2 inferences: no batch goes another way
    assert len(calls) == 11 + 2 + 3 + 2
    names = sorted(each.name for each in (tmp_path / "IPU" / "checkpoints").iterdir())
    assert names == ["latest-0.txt", "model-10-0.ckpt"]


def test_two_instances_train_one_model_and_one_of_them_logs(ported, tmp_path):
    arguments = [
        "run.compute_mode=IPU",
        "run.iterations=10",
        "run.aux_iterations=50",
        f"output_dir={tmp_path}",
    ]
    first, second = run(ported, arguments, 2, changed={"ABELE_TARGET": "reference"})
    assert first.out.count("train step") == 10
    assert second.out == ""
    saved = [
        torch.load(tmp_path / "checkpoints" / f"model-10-{number}.ckpt", weights_only=True)[
            "state_dict"
        ]
        for number in range(2)
    ]
    assert all(torch.equal(saved[0][name], saved[1][name]) for name in saved[0])


def test_the_check_runs_the_port_in_its_mode(ported, result, tmp_path):
    arguments = ["run.compute_mode=CPU", f"output_dir={tmp_path}"]
    of_port = arguments_of_port(result.switch, arguments)
    assert of_port == ["run.compute_mode=IPU", arguments[1]]
    comparison = check(TRAINER, ported, 3, arguments, port_arguments=of_port, python=python())
    assert comparison.status == 0, str(comparison)
    assert "equal to its original for 3 steps" in str(comparison)


@pytest.mark.parametrize(
    ("given", "expected"),
    [(["--mode", "cpu"], ["--mode", "ipu"]), (["mode=GPU", "x=1"], ["mode=IPU", "x=1"])],
)
def test_arguments_name_the_new_mode(given, expected, result):
    assert arguments_of_port(result.switch, given) == expected
    assert arguments_of_port(None, given) == given


def test_arguments_without_a_mode_are_refused(result):
    with pytest.raises(CheckError, match=r"No argument behind -- names a mode \(CPU, GPU, XPU\)"):
        arguments_of_port(result.switch, ["run.iterations=3"])


def test_functions_are_given_the_mode_and_their_programs(monkeypatch, tmp_path):
    fixtures = Path(__file__).parent / "rules"
    before = printed(fixtures / "modes.in.py", (), monkeypatch)
    after = (fixtures / "modes.out.py").read_text()
    new = tmp_path / "modes.py"
    new.write_text(after.replace("main(Settings(Mode.cpu))", "main(Settings(Mode.ipu))"))
    monkeypatch.setattr(torch.Tensor, "backward", None)
    assert len(before.splitlines()) == 22
    assert printed(new, (), monkeypatch) == before


def test_a_place_that_cannot_know_the_mode_is_named():
    text = (
        "import enum\n\nimport torch\n\n\n"
        "class Mode(enum.Enum):\n    CPU = 0\n    GPU = 1\n\n\n"
        "class Settings:\n    def __init__(self, mode):\n        self.mode = mode\n"
        "        self.fast = self.mode == Mode.GPU\n\n\n"
        "model = torch.nn.Linear(4, 3)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n    optimizer.zero_grad()\n"
        "    loss = model(torch.ones(8, 4)).square().mean()\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    result = port(Project([Source("run.py", text)]))
    assert result.verdict is Verdict.BLOCKED
    (blocked,) = [each for each in result.findings if each.verdict is Verdict.BLOCKED]
    assert (blocked.code, blocked.line) == ("ABP909", 18)
    assert "give this function the object that has the mode" in blocked.reason
