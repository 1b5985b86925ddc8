"""Originals beside their ports: equal ones, and every mistake that a port may have."""

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from abele.errors import CheckError
from abele.port import files
from abele.port.check import check, checked, process
from abele.port.engine import port
from helpers.warm_python import python

SCRIPTS = Path(__file__).parent / "scripts"
ORIGINAL = (SCRIPTS / "original.py").read_text()
PORT = (SCRIPTS / "port.py").read_text()


@dataclasses.dataclass
class Pair:
    """Copies of the scripts in a folder, to be changed."""

    folder: Path

    def __post_init__(self):
        for file in SCRIPTS.glob("*.py"):
            (self.folder / file.name).write_text(file.read_text())

    def edit(self, name, *changes):
        path = self.folder / f"{name}.py"
        text = path.read_text()
        for old, new in changes:
            assert text.count(old) == 1, (old, "is to be changed once")
            text = text.replace(old, new)
        path.write_text(text)

    def check(self, steps=4, arguments=(), **more):
        files = self.folder / "original.py", self.folder / "port.py"
        return check(*files, steps, arguments, timeout_s=120, python=python(), **more)


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


def test_a_right_port_is_equal_bit_for_bit(pair):
    seen = []
    comparison = pair.check(steps=6, progress=seen.append)  # with shuffling, in both epochs
    assert comparison.equal
    assert comparison.status == 0
    assert comparison.compared == 9
    assert [each.same_loss for each in comparison.steps] == [True] * 6
    assert seen == sorted(seen)
    assert seen[-1] == 12  # of both
    assert "equal to its original for 6 steps: losses and 9 tensors" in str(comparison)


ONE_STEP = "_, loss = trainer(rows, classes)"
MISTAKES = {
    "learning rate": ("port", ("lr=0.1", "lr=0.2"), (1, "parameter", "hidden.weight")),
    "sum of losses": ("port", ("EntropyLoss()", "EntropyLoss(reduction='sum')"), (1, "loss", "")),
    "two calls": ("port", (ONE_STEP, f"{ONE_STEP}; {ONE_STEP}"), (2, "loss", "")),
    "other weights": (
        "port",
        ("model = With", "torch.manual_seed(7); model = With"),
        (0, "parameter", "hidden.weight"),
    ),
    "no zero_grad": ("original", ("optimizer.zero_grad()", "pass"), (2, "parameter", None)),
    "short last batch": ("original", (", drop_last=True", ""), (5, "loss", "")),
    "no bias trained": (
        "port",
        ("model.train()", "model.train(); model.model.scores.bias.requires_grad_(False)"),
        (1, "parameter", "scores.bias"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed_at_its_first_step(pair, name):
    script, change, (step, kind, tensor) = MISTAKES[name]
    pair.edit(script, change)
    comparison = pair.check(steps=6)
    first = comparison.difference
    assert first is not None
    assert comparison.status == 1
    assert (first.step, first.kind) == (step, kind)
    assert tensor is None or first.name == tensor
    assert (first.far is None) == (step == 0)
    assert step == 0 or first.far > 1e-7


def test_a_gpu_that_is_asked_for_is_the_host_and_workers_are_left_out(pair):
    pair.edit(
        "original",
        ("drop_last=True", "drop_last=True, num_workers=2, persistent_workers=True"),
        ("model = Net()", "model = Net().cuda().to(0)"),
        ("loss_function(model(rows), classes)",
         "loss_function(model(rows.to('cuda')), classes.to(torch.device('cuda:0')))"),
    )  # fmt: skip
    comparison = pair.check()
    assert comparison.equal, str(comparison)
    assert comparison.notes == (
        "data loaders load in their process, without workers",
        "the original asks for a GPU and runs on the host instead",
    )


def test_rows_that_only_the_port_leaves_out_are_noted(pair):
    pair.edit("original", (", drop_last=True", ""))
    assert pair.check().notes == ("6 of 70 rows of every epoch are left out",)


def test_an_accumulated_step_is_one_of_the_port(pair):
    pair.edit(
        "original",
        ("for rows, classes in loader:", "for step, (rows, classes) in enumerate(loader):"),
        ("            optimizer.zero_grad()\n", ""),
        ("loss_function(model(rows), classes)", "loss_function(model(rows), classes) / 2"),
        ("optimizer.step()", "(step % 2 and (optimizer.step(), optimizer.zero_grad()))"),
    )
    pair.edit("port", ("(False)", "(False); options.Training.gradientAccumulation(2)"))
    comparison = pair.check(steps=3)
    assert comparison.equal, str(comparison)
    assert [len(each.original.losses) for each in comparison.steps] == [2, 2, 2]


def test_a_call_of_several_updates_is_compared_step_by_step(pair):
    pair.edit("port", ("(False)", "(False).deviceIterations(2)"))
    comparison = pair.check(steps=3)
    assert comparison.equal, str(comparison)
    assert [each.same_loss for each in comparison.steps] == [None, True, None]
    assert "the loss of 2 of 3 steps was not returned by the port" in comparison.notes


def test_one_that_makes_fewer_steps_is_different(pair):
    pair.edit("port", ("in range(arguments.epochs)", "in range(1)"))
    comparison = pair.check(steps=20)
    assert (comparison.difference.kind, comparison.difference.step) == ("steps", 5)
    assert "The port ends after 4 steps, the original goes on" in str(comparison)


def test_what_a_script_does_after_its_last_step_is_not_waited_for(pair):
    pair.edit("original", ("print(loss.item())", "import time; step = 1 / (2 - _); _ += 1"))
    comparison = pair.check(steps=2)  # the third would divide by zero
    assert comparison.equal


FAILURES = {
    "a script that fails": (
        ("original", ("model = Net()", "raise ValueError('no data here')")),
        r"(?s)The original '.*original.py' failed.*by itself first.*ValueError: no data here",
    ),
    "a script that exits": (
        ("port", ("model = WithLoss(Net())", "raise SystemExit(3)")),
        r"(?s)The port '.*port.py' failed.*It exited with 3",
    ),
    "an original that does not train": (
        ("original", ("loss.backward()", "continue")),
        r"The original '.*' ended and made no update by.*arguments with which it trains",
    ),
    "a port that does not train": (
        ("port", ("for _ in range(arguments.epochs)", "for _ in range(0)")),
        r"The port '.*' ended and made no call of a training model",
    ),
    "a port that fails later": (
        ("port", ("print(loss.item())", "del options.missing")),
        r"(?s)The port '.*port.py' failed.*AttributeError",
    ),
    "a process that dies": (
        (
            "port",
            ("model = WithLoss(Net())", "import os; print('so far', flush=True); os._exit(4)"),
        ),
        r"(?s)The port '.*' died: its process ended with status 4.*printed last:\nso far",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_cannot_be_compared_is_an_error(pair, name):
    change, message = FAILURES[name]
    pair.edit(*change)
    with pytest.raises(CheckError, match=message):
        pair.check()


def test_a_script_that_hangs_is_an_error(pair, monkeypatch):
    hangs = pair.folder / "hangs"
    wait = f"import time; print('waits', flush=True); open({str(hangs)!r}, 'w'); time.sleep(60)"
    pair.edit("original", ("model = Net()", wait))
    # A day passes where the script waits.
    clock = SimpleNamespace(
        sleep=time.sleep, monotonic=lambda: time.monotonic() + 86400.0 * hangs.exists()
    )
    monkeypatch.setattr(process, "time", clock)
    with pytest.raises(CheckError, match=r"(?s)not come to its next training step in time.*waits"):
        pair.check()


def test_files_and_numbers_are_checked_first(pair):
    with pytest.raises(CheckError, match=r"no file '.*nothing.py'. Name a Python program as port"):
        check(pair.folder / "original.py", pair.folder / "nothing.py")
    with pytest.raises(CheckError, match="0 steps leave nothing to compare"):
        check(pair.folder / "original.py", pair.folder / "port.py", 0)


def test_a_command_prints_the_table_and_exits_with_the_verdict(pair, capsys):
    pair.edit("port", ("lr=0.1", "lr=0.2"))
    files = pair.folder / "original.py", pair.folder / "port.py"
    assert checked(*files, 2, [], timeout_s=120, python=python()) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[0].split() == ["step", "original", "port", "loss", "batch", "tensors"]
    assert "first in parameter 'hidden.weight' after step 1" in said
    assert "original.py:20: `loss.backward()`" in said


def test_a_command_that_cannot_compare_exits_with_2(pair, capsys):
    assert checked(pair.folder / "original.py", pair.folder / "none.py", 2, []) == 2
    assert capsys.readouterr().err.startswith("abele port: There is no file")


def test_the_way_back_is_compared_with_its_names_turned(pair):
    pair.edit("port", ("(False)", "(False).deviceIterations(2)"))
    script, plain = pair.folder / "port.py", pair.folder / "back.py"
    texts = port(files.read(script), to="torch").after
    text = texts["port.py"]
    plain.write_text(text)
    (pair.folder / "plain_poptorch.py").write_text(texts["plain_poptorch.py"])
    more = {"timeout_s": 120, "python": python(), "back": True}
    comparison = check(script, plain, 4, **more)
    assert comparison.equal, str(comparison)
    assert str(comparison).splitlines()[0].split()[1:3] == ["port", "original"]
    plain.write_text(text.replace("lr=0.1", "lr=0.2"))
    said = str(check(script, plain, 4, **more))
    assert "The port differs from its original, first in parameter" in said
