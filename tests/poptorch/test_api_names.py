"""Every public name of PopTorch 3.4 either exists or says that it does not yet."""

import json
from pathlib import Path

import pytest
import torch

import poptorch
from poptorch import _not_yet

API = json.loads(Path(__file__).with_name("api_names.json").read_text())
TOP = [name for kind in ("functions", "classes", "enums", "exceptions") for name in API[kind]]


@pytest.mark.parametrize("name", TOP)
def test_a_name_exists_or_is_announced(name):
    assert hasattr(poptorch, name) != (name in _not_yet.NAMES)


@pytest.mark.parametrize("name", API["executor"])
def test_a_member_exists_or_is_announced(name):
    assert hasattr(poptorch.PoplarExecutor, name) != (name in _not_yet.EXECUTOR_MEMBERS)


def test_using_a_missing_name_says_so():
    with pytest.raises(AttributeError, match=r"poptorch\.for_loop is part of PopTorch 3\.4 and"):
        _ = poptorch.for_loop
    with pytest.raises(AttributeError, match=r"save is part of PopTorch 3\.4 and not in abele yet"):
        poptorch.inferenceModel(torch.nn.Linear(2, 2)).save("file")
