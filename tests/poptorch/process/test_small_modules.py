"""The small modules around the package: popart, poptorch.testing, poptorch.poptorch_core."""

import copy

import pytest
import torch

import popart
import poptorch
import poptorch.testing
from poptorch.poptorch_core import isAlreadyRegistered


@pytest.mark.parametrize(
    ("member", "number"),
    [
        (popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized, 3),
        (popart.SubgraphCopyingStrategy.JustInTime, 1),
        (popart.SyntheticDataMode.RandomNormal, 2),
        (popart.RecomputationType.Pipeline, 3),
        (popart.RecomputationType.RecomputeAll, 4),
        (getattr(popart.RecomputationType, "None"), 0),
        (popart.VirtualGraphMode.Manual, 1),
        (popart.BatchSerializationBatchSchedule.Isomorphic, 1),
    ],
)
def test_popart_numbers(member, number):
    assert int(member) == number
    assert copy.deepcopy(member) is member


def test_popart_enumerations_serve_as_options():
    options = poptorch.Options().enableSyntheticData(int(popart.SyntheticDataMode.Off))
    options._Popart.set("autoRecomputation", int(popart.RecomputationType.Standard))
    assert options._Popart.options["autoRecomputation"] == 1


def test_popart_proper_is_said_not_to_be_here():
    with pytest.raises(AttributeError, match=r"popart\.Builder is not here"):
        _ = popart.Builder


def test_allclose_compares_structures():
    x = torch.randn(3)
    allclose = poptorch.testing.allclose
    assert allclose(x, x + 1e-9)
    assert allclose((x, [x, x]), (x, [x, x.double()]))
    assert not allclose(x, x + 1)
    assert not allclose(x, x[:2])
    assert not allclose([x], (x,))
    assert not allclose([x], [x, x])
    assert not allclose(x, [x])
    with pytest.raises(TypeError, match="compares tensors, tuples and lists, found dict"):
        allclose({"x": x}, {"x": x})


def test_unregistered_types_have_no_parser():
    assert not isAlreadyRegistered(object())


def test_an_error_can_be_made():
    output = poptorch.createPoptorchError("no luck")
    assert (output.message, output.type, output.location) == ("no luck", "poptorch_py_error", "")
    assert str(output) == "'poptorch_py_error': no luck"
