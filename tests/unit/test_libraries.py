"""Whose code is not the user's: by file and by module."""

from pathlib import Path

import pytest
import torch

from abele import libraries


@pytest.fixture
def front_end(monkeypatch):
    monkeypatch.setattr(libraries, "_names", set(libraries._names))
    monkeypatch.setattr(libraries, "_folders", libraries._folders)
    libraries.register("front", Path("/packages/front"))


def test_torch_and_the_engine_are_libraries():
    assert libraries.has_file(torch.__file__)
    assert libraries.has_file(libraries.__file__)
    assert libraries.has_module("torch.nn")
    assert not libraries.has_file("/home/me/torch/model.py")
    assert not libraries.has_module("torchish")


def test_a_front_end_registers(front_end):
    assert libraries.has_module("front.part")
    assert libraries.has_file("/packages/front/part.py")
    assert not libraries.has_file("/packages/front_of_mine/part.py")
