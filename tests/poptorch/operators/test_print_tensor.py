"""ipu_print_tensor: what is written, when, and in which order."""

import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import inference, rows, scorer, trainer, weights


class Printing(torch.nn.Module):
    """A dense layer whose scores are printed."""

    def __init__(self, **settings):
        super().__init__()
        self.fc = scorer().fc
        self.settings = settings

    def forward(self, x, target):
        scores = poptorch.ipu_print_tensor(self.fc(x), "scores", **self.settings)
        return F.mse_loss(scores, target)


def titles(capsys):
    return re.findall(r"^([\w ]+): ", capsys.readouterr().err, re.MULTILINE)


def test_every_run_writes_the_values_to_stderr(capsys):
    wrapped = inference(lambda x: poptorch.ipu_print_tensor(x * 2, "double"))
    wrapped.compile(torch.ones(2))
    assert capsys.readouterr() == ("", "")
    for value in (1.0, 3.0):
        result = wrapped(torch.full((2,), value))
        assert torch.equal(result, torch.full((2,), 2 * value))
        assert capsys.readouterr() == ("", f"double: ({2 * value:.4f}, {2 * value:.4f})\n")


def test_training_also_writes_the_gradient(capsys):
    model = Printing()
    x, target = rows(2)
    scores = model.fc(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(F.mse_loss(scores, target), scores)
    trainer(model)(x, target)
    errors = capsys.readouterr().err
    numbers = [float(each) for each in re.findall(r"-?\d+\.\d+(?:e-\d+)?", errors)]
    expected = [*scores.flatten().tolist(), *gradient.flatten().tolist()]
    assert numbers == pytest.approx(expected, abs=1e-4)
    assert re.findall(r"^\w+(?=: )", errors, re.MULTILINE) == ["scores", "scores_gradient"]


def test_the_gradient_can_be_left_out(capsys):
    trainer(Printing(print_gradient=False))(*rows(2))
    assert titles(capsys) == ["scores"]


def test_training_is_the_same_with_and_without(capsys):
    printing, plain = Printing(), scorer()
    wrapped, other = trainer(printing), trainer(plain)
    for _ in range(3):
        wrapped(*rows(4))
        other(*rows(4))
    assert torch.equal(weights(printing), weights(plain))
    assert len(titles(capsys)) == 6


def test_it_prints_for_every_micro_batch_and_replica(capsys):
    wrapped = trainer(Printing(), gradientAccumulation=2, replicationFactor=2, deviceIterations=3)
    wrapped(*rows(12))
    assert titles(capsys) == ["scores", "scores_gradient"] * 12


def test_a_result_that_nobody_uses_is_not_printed(capsys):
    def forward(x):
        poptorch.ipu_print_tensor(x, "lost")
        return poptorch.ipu_print_tensor(x, "kept")

    inference(forward)(torch.ones(2))
    assert titles(capsys) == ["kept"]


def test_equal_prints_are_not_merged_and_keep_their_order(capsys):
    def forward(x):
        first = poptorch.ipu_print_tensor(x, "same")
        second = poptorch.ipu_print_tensor(x, "same")
        third = poptorch.ipu_print_tensor(x + 1, "other")
        return third + second + first

    inference(forward)(torch.ones(2))
    assert titles(capsys) == ["same", "same", "other"]


def test_layout_settings_reach_the_text(capsys):
    def forward(x):
        return poptorch.ipu_print_tensor(x, "t", True, 3, 1, 0, 2, "scientific", " | ", "<", ">")

    inference(forward)(torch.arange(4.0))
    assert capsys.readouterr().err == "t: <0.00e+00 | ... | 3.00e+00>\n"


def test_without_a_title_the_name_in_the_program_stands_there(capsys):
    inference(lambda x: poptorch.ipu_print_tensor(torch.tanh(x)))(torch.zeros(1))
    assert capsys.readouterr().err == "tanh: (0.0000)\n"


def test_on_the_host_it_is_the_identity(capsys):
    x = torch.ones(2, requires_grad=True)
    assert poptorch.ipu_print_tensor(x, "x") is x
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("value", [1.0, [torch.ones(1)], None])
def test_other_values_are_refused(value):
    with pytest.raises(poptorch.Error, match=r"must be a torch\.Tensor, found"):
        poptorch.ipu_print_tensor(value)


def test_an_unknown_format_is_a_key_error():
    with pytest.raises(KeyError, match=r"float_format 'hex'.*scientific"):
        poptorch.ipu_print_tensor(torch.ones(1), float_format="hex")
