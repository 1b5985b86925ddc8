"""Ten plain PyTorch programs with a decorator before their step print what they have printed."""

import re
from pathlib import Path

import pytest

from helpers.warm_python import run_program

FOLDER = Path(__file__).parents[2] / "helpers" / "plain_scripts"
STEPS = {
    "diffusion": "train_step",
    "gan": "train_step",
    "lightning_style": "run_training_batch",
    "mnist": "train_step",
    "moco": "train_step",
    "nano_gpt": "train_step",
    "packed_lstm": "train_batch",
    "sklearn_regression": "_train_on_batch",
    "trainer": "training_step",
    "unet": "train_batch",
}
LONG = {"diffusion", "lightning_style", "nano_gpt", "packed_lstm", "trainer", "unet"}
PLAIN = {"packed_lstm": "reads the value of a tensor while the program is being captured"}


# What the decorated function and those of its objects have become, after the script.
REPORT = """
import gc, sys
made = [each for each in gc.get_objects() if type(each).__name__ == "Function"]
print(*(repr(each) for each in made if each.programs or each.eager), sep="\\n", file=sys.stderr)
"""


def compiled(script: Path, folder: Path) -> Path:
    """The script with two more lines, an import and a decorator, and a report at its end."""
    function, text = STEPS[script.stem], script.read_text()
    text, count = re.subn(rf"(?m)^( *)(def {function}\()", r"\1@abele.compile\n\1\2", text)
    text = re.sub(r"(?m)^import torch$", "import abele\nimport torch", text, count=1)
    assert (count, text.count("abele")) == (1, 2)
    changed = folder / script.name
    changed.write_text(text + REPORT)
    return changed


def test_every_script_is_tried():
    assert {each.stem for each in FOLDER.glob("*.py")} == set(STEPS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=pytest.mark.long if each in LONG else ()) for each in STEPS],
)
def test_a_compiled_script_prints_the_same(name, tmp_path):
    script = FOLDER / f"{name}.py"
    plain = run_program(script, "--steps", 4)
    found = run_program(compiled(script, tmp_path), "--steps", 4, ABELE_TARGET="reference")
    assert (plain.returncode, found.returncode) == (0, 0), found.stderr
    assert found.stdout == plain.stdout
    (state,) = re.findall(r"<abele function \S+: (.*)>", found.stderr)
    if name in PLAIN:
        assert state.startswith("plain PyTorch, because")
        assert PLAIN[name] in state
    else:
        assert re.fullmatch("[1-9] programs? on reference", state)
