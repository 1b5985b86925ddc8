"""The user's line that programs and errors name, and files that are kept out of it."""

import importlib.util

import pytest
import torch

import poptorch
from helpers.wrapping import options

HELPER = """import torch

class Halve(torch.nn.Module):
    def forward(self, x):
        return torch.div(x, 2)
"""


def halve_in(folder):
    """A module from a file in ``folder``."""
    folder.mkdir()
    (folder / "small.py").write_text(HELPER)
    spec = importlib.util.spec_from_file_location(f"small_{folder.name}", folder / "small.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Halve()


@pytest.fixture
def halve(tmp_path):
    return halve_in(tmp_path / "helpers")


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def text(function, made):
    wrapped = poptorch.inferenceModel(Model(function), made)
    wrapped(torch.ones(2))
    return wrapped.program_text()


def test_a_line_is_the_innermost_one_of_the_users_files(halve):
    assert "small.py:5" in text(halve, options())


def test_excluded_files_are_not_named(halve):
    for made in (
        options().appendToLocationExcludes("/helpers/"),
        options().sourceLocationExcludes(["/helpers/"]),
    ):
        result = text(halve, made)
        assert "small.py" not in result
        assert "test_source_lines.py" in result


def test_default_fragments_do_not_hide_a_project_of_such_a_name(tmp_path):
    assert "small.py:5" in text(halve_in(tmp_path / "poptorch"), options())
