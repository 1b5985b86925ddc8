"""The command that ports the examples of PyTorch: what it says of an example, and its stand-ins."""

import subprocess
from pathlib import Path

import pytest
from benchmarks.port_examples import STANDINS, of_example
from benchmarks.port_examples_list import EXAMPLES, Example
from benchmarks.port_examples_page import row

from helpers.warm_python import python

PROGRAMS = Path(__file__).parents[1] / "port/programs"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    folder = tmp_path / "checkout/small"
    folder.mkdir(parents=True)
    (folder / "main.py").write_text((PROGRAMS / "functions.py").read_text())
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder.parent


def test_an_example_is_ported_and_what_changed_is_counted(checkout):
    said = of_example(Example(script="small/main.py", asked="automatic"), checkout, 20)
    assert said["verdict"] == "modified"
    assert 5 < said["changed"] < said["lines"]
    assert said["as_asked"]
    assert row(said).startswith("| `small` | automatic | modified | ")
    assert "| not compared |" in row(said)


def test_an_edit_is_made_before_and_named(checkout):
    edits = (("main.py", r"(?m)^import torch$", "import torch\nimport gym\ngym.make('a')"),)
    example = Example(
        script="small/main.py", asked="blocked", edits=edits, notes=("a game is played",)
    )
    said = of_example(example, checkout, 20)
    assert said["verdict"] == "blocked"
    assert said["as_asked"]
    assert any("ABP607: gym.make('a')" in each for each in said["named"])
    assert "blocked, 1 edited" in row(said)


def test_another_version_of_an_example_is_told(checkout):
    example = Example(script="small/main.py", asked="notes", edits=(("main.py", "no such", ""),))
    with pytest.raises(SystemExit, match=r"main\.py is another version: 'no such' is not in it"):
        of_example(example, checkout, 20)


def test_what_is_asked_is_one_of_three():
    assert {each.asked for each in EXAMPLES} == {"automatic", "notes", "blocked"}


def test_the_stand_ins_have_the_shapes_of_what_they_stand_for():
    program = """
import torch
from six.moves import urllib
from torchvision import datasets, models, transforms
change = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1,), (0.3,))])
image, target = datasets.MNIST("..", train=False, transform=change)[3]
print(list(image.shape), image.dtype, target, len(datasets.MNIST("..")))
network = models.ResNet(1000, (64, 128, 256, 512))
print(sum(each.numel() for each in network.parameters()), len(list(network.children())))
names = [name for name, _ in network.named_parameters()]
print(names == [name for name, _ in models.resnet18(weights=None).named_parameters()])
print(len(models.vgg16(pretrained=True).features))
fake, _ = datasets.FakeData(9, (3, 8, 6), 5, transforms.ToTensor())[2]
print(list(fake.shape))
"""
    made = subprocess.run(
        [python(), "-c", program],
        env={"PYTHONPATH": str(STANDINS)},
        capture_output=True,
        text=True,
        check=True,
    )
    # The network of 18 layers has 11,689,512 parameters, as is published.
    assert made.stdout.splitlines() == [
        "[1, 28, 28] torch.float32 8 1300", "11689512 10", "True", "31", "[3, 8, 6]",
    ]  # fmt: skip
