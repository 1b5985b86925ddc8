"""Tables of functions of tensors: the ``CASES`` of a module are compiled together."""

import pytest

from helpers.emitted_operators import Compiled


@pytest.fixture(scope="module")
def compiled(request):
    """The cases of the module as emitted code."""
    return Compiled(request.module.CASES)


def pytest_generate_tests(metafunc):
    """Call the tests of ``helpers.emitted_operators`` with each case of the module."""
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", metafunc.module.CASES)
    if "accurate" in metafunc.fixturenames:
        metafunc.parametrize("accurate", metafunc.module.ACCURATE)
