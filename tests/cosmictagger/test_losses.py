"""Losses against the original's numbers, and against numpy on the scores of a network."""

import numpy as np
import pytest
import torch

from cosmictagger.config.keys import LossBalanceScheme
from cosmictagger.errors import ConfigError
from cosmictagger.measures import Loss
from helpers import cosmic_reference as reference

SCHEMES = ["none", "light", "even", "focal"]

# Loss, and the norm of its gradient for each plane.
PUBLISHED = {
    "none": (3.298080, [1.475581e-03, 1.471586e-03, 1.428206e-03]),
    "light": (3.301103, [1.504331e-03, 1.567382e-03, 1.561052e-03]),
    "even": (3.167868, [1.479446e-02, 1.623988e-02, 1.812022e-02]),
    "focal": (5.562213, [2.626940e-03, 2.611100e-03, 2.634249e-03]),
}


def differentiated(scheme, logits, label):
    logits = [torch.tensor(plane, requires_grad=True) for plane in logits]
    loss = Loss(scheme)(logits, torch.as_tensor(label))
    loss.backward()
    return loss.item(), [plane.grad.numpy() for plane in logits]


@reference.needs_sample
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_published_losses_and_gradients(scheme):
    loss, gradients = differentiated(scheme, reference.published_logits(), reference.labels())
    wanted, norms = PUBLISHED[scheme]
    assert loss == pytest.approx(wanted, rel=1e-6)
    # The original's norms were added up in float32, which is the error of up to 3e-4 in them.
    results = [torch.from_numpy(plane).norm().item() for plane in gradients]
    assert results == pytest.approx(norms, rel=5e-4)
    _, exact = reference.loss(scheme, reference.published_logits(), reference.labels())
    for plane, expected in zip(gradients, exact, strict=True):
        difference = np.linalg.norm(plane - expected)
        assert difference < 1e-6 * np.linalg.norm(expected)


# Computed by `reference.loss`, that is by numpy in float64, from the logits of the network.
GOLDEN = {"none": 2.832372, "light": 3.010839, "even": 12.472709, "focal": 3.470925}


@reference.needs_sample
@pytest.mark.parametrize("scheme", SCHEMES)
def test_losses_of_a_network_on_real_events(scheme):
    loss, gradients = differentiated(scheme, reference.network_logits(), reference.labels())
    wanted, wanted_gradients = reference.loss(
        scheme, reference.network_logits(), reference.labels()
    )
    assert wanted == pytest.approx(GOLDEN[scheme], rel=1e-5)  # rounding inside the network
    assert loss == pytest.approx(wanted, rel=1e-6)
    for actual, expected in zip(gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-6 * np.abs(expected).max())


def small(classes=(0, 1, 2), dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(2, 3, 4, 8, generator=generator).to(dtype) for _ in range(3)]
    choice = torch.randint(len(classes), (2, 3, 4, 8), generator=generator)
    return logits, torch.tensor(classes)[choice]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("classes", [(0,), (0, 2), (1,), (0, 1, 2)])
def test_classes_may_be_absent(scheme, classes):
    logits, label = small(classes)
    loss, gradients = differentiated(scheme, [plane.numpy() for plane in logits], label)
    wanted, wanted_gradients = reference.loss(scheme, [x.numpy() for x in logits], label.numpy())
    assert loss == pytest.approx(wanted, rel=1e-6)
    np.testing.assert_allclose(gradients, wanted_gradients, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_scores_give_a_loss_in_float32(scheme, dtype):
    logits, label = small(dtype=dtype)
    loss = Loss(scheme)(logits, label)
    assert loss.dtype == torch.float32
    assert loss == Loss(scheme)([plane.float() for plane in logits], label)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_certainty_is_no_loss_and_no_nan(scheme):
    _, label = small()
    hot = torch.nn.functional.one_hot(label, 3).permute(1, 0, 4, 2, 3)
    loss, gradients = differentiated(scheme, 1000.0 * hot.numpy().astype(np.float32), label)
    assert loss == 0
    assert not np.any(gradients)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_equal_scores_are_three_times_the_logarithm_of_three(scheme):
    label = small()[1]
    loss = Loss(scheme)([torch.zeros(2, 3, 4, 8)] * 3, label)
    assert loss.item() == pytest.approx(3 * np.log(3), rel=1e-6)


def test_a_scheme_has_a_name_and_a_number():
    for scheme in LossBalanceScheme:
        assert Loss(scheme).scheme is Loss(scheme.name).scheme is Loss(scheme.value).scheme
    with pytest.raises(ConfigError, match=r"loss_balance_scheme=hard.*Known: none \(0\), light"):
        Loss("hard")
