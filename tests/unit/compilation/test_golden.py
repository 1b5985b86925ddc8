"""Printed programs of tiny models, kept as files: a change of the graph is read as a diff.

``pytest tests/unit/compilation/test_golden.py --update-golden`` rewrites them.
"""

import difflib
from pathlib import Path

import pytest

from abele import StepConfig, passes
from helpers.models import MODELS
from helpers.runs import captured, rule_for

FOLDER = Path(__file__).parents[2] / "golden"


def programs(name, config=None, kind=None, **values):
    """The programs of a model after the common passes; trains by rule ``kind``, if any."""
    model = MODELS[name]
    module = model.fresh()
    rule = rule_for(module, kind, **values) if kind else None
    return [passes.run(each) for each in captured(module, model.batch(), config, rule).programs]


GOLDEN = {
    "affine-forward": lambda: programs("affine"),
    "introduction-sgd": lambda: programs("introduction", kind="sgd"),
    "batch-norm-and-dropout-sgd": lambda: programs("batch norm and dropout", kind="sgd"),
    "tied-weights-adam": lambda: programs("tied weights", kind="adam", variable=["lr"]),
    "frozen-parameters-rmsprop": lambda: programs("frozen parameters", kind="rmsprop"),
    "dense-accumulated": lambda: programs("dense", StepConfig(gradient_accumulation=4), "sgd"),
}


@pytest.mark.parametrize(("name", "make"), GOLDEN.items(), ids=GOLDEN)
def test_the_printed_program_is_the_golden_one(name, make, update_golden):
    result = "\n\n".join(program.text(provenance=False) for program in make())
    path = FOLDER / f"{name}.py.txt"
    if update_golden:
        path.write_text(result)
    expected = path.read_text() if path.exists() else ""
    difference = difflib.unified_diff(
        expected.splitlines(), result.splitlines(), str(path), "printed now", lineterm=""
    )
    text = "\n".join(difference)
    assert result == expected, f"see --update-golden\n{text}"


def test_no_golden_file_is_left_over():
    assert {path.name for path in FOLDER.glob("*.py.txt")} == {f"{name}.py.txt" for name in GOLDEN}
