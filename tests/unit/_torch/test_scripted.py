"""Calls of TorchScript functions that a capture replaces."""

import threading

import pytest
import torch

from abele._torch.scripted import scripted_functions_replaced

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def doubled(x):
    return x * 2


def test_a_scripted_function_is_replaced_in_one_context_alone():
    scripted, x = torch.jit.script(doubled), torch.ones(1)
    other = []
    with scripted_functions_replaced({scripted.qualified_name: lambda x: x * 3}):
        assert scripted(x).item() == 3
        thread = threading.Thread(target=lambda: other.append(scripted(x).item()))
        thread.start()
        thread.join()
        with scripted_functions_replaced({}):
            assert scripted(x).item() == 2
    assert scripted(x).item() == 2
    assert other == [2]
