"""Finding the one final loss of a model."""

import contextlib

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele.capture.losses import LOSS_FUNCTIONS, LossFinder, mark_loss
from abele.errors import LossError
from helpers.runs import captured, rule_for, started

X = torch.rand(4, 3) * 0.8 + 0.1
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])
CLASSES = torch.tensor([0, 1, 2, 0])


class Scaled(nn.Module):
    """Multiplies its input by a weight and hands it to the loss of a test."""

    def __init__(self, loss):
        super().__init__()
        self.weight, self.loss = nn.Parameter(torch.ones(3)), loss

    def forward(self, x):
        return self.loss(x * self.weight)


def updated(loss):
    """Parameters that get a gradient when ``loss`` is the end of forward."""
    module = Scaled(loss)
    return captured(module, (X,), None, rule_for(module)).updated


LOSSES = {
    F.nll_loss: lambda y: F.nll_loss(y.log_softmax(1), CLASSES),
    F.cross_entropy: lambda y: F.cross_entropy(y, CLASSES),
    F.binary_cross_entropy: lambda y: F.binary_cross_entropy(y, torch.ones(4, 3)),
    F.binary_cross_entropy_with_logits: (
        lambda y: F.binary_cross_entropy_with_logits(y, torch.ones(4, 3))
    ),
    F.mse_loss: lambda y: F.mse_loss(y, torch.ones(4, 3)),
    F.l1_loss: lambda y: F.l1_loss(y, torch.ones(4, 3)),
    F.smooth_l1_loss: lambda y: F.smooth_l1_loss(y, torch.ones(4, 3)),
    F.kl_div: lambda y: F.kl_div(y, torch.ones(4, 3), reduction="batchmean"),
    F.poisson_nll_loss: lambda y: F.poisson_nll_loss(y, torch.ones(4, 3)),
    F.hinge_embedding_loss: lambda y: F.hinge_embedding_loss(y[:, 0], SIGNS),
    F.cosine_embedding_loss: lambda y: F.cosine_embedding_loss(y, y + 1, SIGNS),
    F.soft_margin_loss: lambda y: F.soft_margin_loss(y[:, 0], SIGNS),
    F.margin_ranking_loss: lambda y: F.margin_ranking_loss(y[:, 0], y[:, 1], SIGNS),
    F.triplet_margin_loss: lambda y: F.triplet_margin_loss(y, y + 1, y - 1),
    F.huber_loss: lambda y: F.huber_loss(y, torch.ones(4, 3)),
    F.gaussian_nll_loss: lambda y: F.gaussian_nll_loss(y, torch.ones(4, 3), torch.ones(4, 3)),
    F.multi_margin_loss: lambda y: F.multi_margin_loss(y, CLASSES),
    F.multilabel_margin_loss: lambda y: F.multilabel_margin_loss(y, CLASSES[:, None].expand(4, 3)),
    F.multilabel_soft_margin_loss: lambda y: F.multilabel_soft_margin_loss(y, torch.ones(4, 3)),
    F.triplet_margin_with_distance_loss: (
        lambda y: F.triplet_margin_with_distance_loss(y, y + 1, y - 1)
    ),
    F.linear_cross_entropy: lambda y: F.linear_cross_entropy(y, torch.ones(3, 3), CLASSES),
    torch.binary_cross_entropy_with_logits: (
        lambda y: torch.binary_cross_entropy_with_logits(y, torch.ones(4, 3))
    ),
    torch.poisson_nll_loss: lambda y: torch.poisson_nll_loss(
        y, torch.ones(4, 3), True, False, 1e-8, 1
    ),
    torch.hinge_embedding_loss: lambda y: torch.hinge_embedding_loss(y[:, 0], SIGNS),
    torch.cosine_embedding_loss: lambda y: torch.cosine_embedding_loss(y, y + 1, SIGNS),
    torch.margin_ranking_loss: lambda y: torch.margin_ranking_loss(y[:, 0], y[:, 1], SIGNS),
    torch.triplet_margin_loss: lambda y: torch.triplet_margin_loss(y, y + 1, y - 1),
    torch.kl_div: lambda y: torch.kl_div(y, torch.ones(4, 3)),
}


# Their arguments are of other shapes; see the tests at the end.
ELSEWHERE = {F.ctc_loss, torch.ctc_loss}


def test_the_table_above_is_complete():
    assert LOSSES.keys() | ELSEWHERE == LOSS_FUNCTIONS.keys()


IDS = [f"{f.__module__ or 'torch'}.{LOSS_FUNCTIONS[f]}" for f in LOSSES]


@pytest.mark.parametrize("loss", LOSSES.values(), ids=IDS)
def test_each_loss_function_is_found(loss):
    assert updated(loss) == ("weight",)


@pytest.mark.parametrize("module", [nn.MSELoss(), nn.SmoothL1Loss(), nn.HuberLoss()], ids=repr)
def test_a_loss_module_is_its_function(module):
    assert updated(lambda y: module(y, X)) == ("weight",)


def mse(y):
    return F.mse_loss(y, X)


def marked(value):
    mark_loss(value)
    return value


ONE_REMAINS = {
    "fed into another loss": lambda y: F.l1_loss(F.mse_loss(y, X, reduction="none"), X),
    "a sum that is marked": lambda y: marked(mse(y) + F.l1_loss(y, X)),
    "marked twice": lambda y: marked(marked(y.sum())),
    "a loss that is marked": lambda y: marked(mse(y)),
    "a mark alone": lambda y: marked((y**2).mean()),
    "scaled afterwards": lambda y: 3 * mse(y),
    "without reduction": lambda y: F.mse_loss(y, X, reduction="none"),
    "not returned": lambda y: (mse(y), y)[1],
    "detached afterwards": lambda y: mse(y).detach(),
}


@pytest.mark.filterwarnings("ignore:Training follows mse_loss")
@pytest.mark.parametrize("loss", ONE_REMAINS.values(), ids=ONE_REMAINS)
def test_one_loss_remains(loss):
    assert updated(loss) == ("weight",)


def test_the_gradient_is_that_of_the_loss_and_not_of_what_is_made_of_it():
    after = []
    for loss in (mse, lambda y: 3 * mse(y)):
        module = Scaled(loss)
        told = contextlib.nullcontext()
        if loss is not mse:
            told = pytest.warns(UserWarning, match="Training follows mse_loss .* alone")
        with told:
            session, _ = started(module, (X + 1,), rule_for(module))
        session.step([X + 1])
        after.append(session.params["weight"])
    assert not torch.equal(after[0], torch.ones(3))
    torch.testing.assert_close(*after, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("loss", "named"),
    [
        (lambda y: mse(y) + F.l1_loss(y, X), r"Found 2: mse_loss, l1_loss\."),
        (lambda y: (mse(y), mse(y), mse(y)), r"Found 3: mse_loss, mse_loss, mse_loss\."),
        (lambda y: mse(y) + marked(y.sum()), r"Found 2: mse_loss, identity_loss\."),
    ],
    ids=["added", "three", "one marked"],
)
def test_independent_losses_are_refused(loss, named):
    module = Scaled(lambda y: loss(y))
    start = r"Multiple independent losses found in graph\. Graph must have one final loss\. "
    with pytest.raises(LossError, match=f"^{start}Wrap final graph loss .*{named}"):
        captured(module, (X,), None, rule_for(module))


@pytest.mark.parametrize("loss", [lambda y: y, lambda y: (y**2).mean()], ids=["none", "by hand"])
def test_no_loss_is_refused(loss):
    module = Scaled(loss)
    with pytest.raises(LossError, match=r"^Couldn't find a loss in graph! .*mark_loss\(loss\)"):
        captured(module, (X,), None, rule_for(module))


def test_inference_needs_no_loss():
    assert captured(Scaled(lambda y: y), (X,)).updated == ()


def test_a_loss_without_parameters_trains_nothing():
    assert updated(lambda y: F.mse_loss(torch.ones(2), torch.zeros(2))) == ()


def test_a_detached_loss_trains_nothing_and_says_so():
    with pytest.warns(UserWarning, match="Training changes nothing: no gradient flows from mse"):
        assert updated(lambda y: mse(y.detach())) == ()


def test_a_mark_outside_of_capture_does_nothing():
    value = torch.ones(1)
    mark_loss(value)
    with LossFinder() as finder:
        mark_loss(value, "inside")
    mark_loss(value)
    assert finder.losses == [("inside", value)]


@pytest.mark.parametrize(
    "lengths", [((4,), (2,)), (torch.tensor([4]), torch.tensor([2]))], ids=["numbers", "tensors"]
)
@pytest.mark.parametrize("function", ELSEWHERE)
def test_ctc_is_found(function, lengths):
    def loss(y):
        reduction = "mean" if function is F.ctc_loss else 1
        targets = torch.tensor([[1, 2]])
        return function(y[:, None].log_softmax(-1), targets, *lengths, 0, reduction)

    assert updated(loss) == ("weight",)


def test_ctc_in_training_needs_a_reduction():
    def loss(y):
        targets = torch.tensor([[1, 2]])
        return F.ctc_loss(y[:, None].log_softmax(-1), targets, (4,), (2,), reduction="none")

    with pytest.raises(LossError, match='reduction="none" is not supported in training'):
        updated(loss)
