"""Inputs and models that cannot become a program: each has a class to catch and words of advice."""

import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers import mistakes
from helpers.wrapping import Calls, inference, options, trainer

X = torch.ones(4, 3)


def _training(forward):
    return trainer(Calls(forward))


def _loss(model, x):
    return F.mse_loss(x * model.weight, x)


def test_code_for_the_host_has_its_place_named():
    model = inference(lambda x: x if x.sum() > 0 else -x)
    with pytest.raises(poptorch.Error, match=r"reads the value.*if not poptorch\.isRunningOnIpu"):
        model(X)


def test_a_loss_of_integers_is_refused():
    with pytest.raises(poptorch.Error, match=r"torch.int64, which has no gradient"):
        _training(lambda self, x: poptorch.identity_loss(x.long(), "none"))(X)


def test_a_tensor_without_dimensions_has_one_row():
    with pytest.raises(AssertionError, match="Invalid batch dimension"):
        inference(lambda x: x + 1, deviceIterations=2)(torch.tensor(1.0))
    assert inference(lambda x: x + 1)(torch.tensor(1.0)) == 2


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_tensors_need_elements(shape):
    with pytest.raises(poptorch.Error, match="no elements"):
        inference(lambda x: x + 1)(torch.ones(shape))


def test_complex_numbers_are_refused():
    with pytest.raises(poptorch.Error, match=r"Complex inputs are not supported.*complex64"):
        inference(lambda x: x + 1)(torch.ones(2, dtype=torch.complex64))


class Adjacent(torch.nn.Module):
    """Multiplies by a matrix that it keeps as a buffer, or as an attribute."""

    def __init__(self, matrix, *, buffer):
        super().__init__()
        if buffer:
            self.register_buffer("matrix", matrix)
        else:
            self.matrix = matrix

    def forward(self, x):
        return torch.sparse.mm(self.matrix, x)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda x: x.to_sparse(), r"of layout torch\.sparse_coo.*to_dense\(\)"),
        (lambda x: x.to_sparse_csr(), r"of layout torch\.sparse_csr"),
        (lambda x: torch.nested.nested_tensor([x, x]), "nested"),
    ],
    ids=["sparse", "compressed", "nested"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
def test_tensors_that_are_not_dense_are_refused_wherever_they_are(other, said):
    x = torch.eye(3)
    with pytest.raises(
        poptorch.Error, match=f"Arguments and results are dense tensors, found one.*{said}"
    ):
        inference(lambda x: x + 1)(other(x))
    with pytest.raises(poptorch.Error, match=rf"not dense, at .*{Path(__file__).name}:\d+: `"):
        inference(lambda x: other(x).to(torch.float32))(x)
    with pytest.raises(poptorch.Error, match=f"matrix is {said}"):
        poptorch.inferenceModel(Adjacent(other(x), buffer=True))(x)


def test_a_sparse_constant_is_refused():
    model = Adjacent(torch.eye(3).to_sparse(), buffer=False)
    with pytest.raises(poptorch.Error, match=r"neither a parameter nor a buffer.*sparse_coo"):
        poptorch.inferenceModel(model)(torch.eye(3))


def test_a_gradient_that_depends_on_values_says_what_to_use():
    def forward(model, x):
        y = x.clone()
        y[x > 0] = x * model.weight
        return poptorch.identity_loss(y, "sum")

    with pytest.raises(poptorch.Error, match=r"gradient of an operation.*torch\.where\(mask"):
        _training(forward)(torch.ones(3))


def test_a_bfloat16_input_of_a_float32_model_is_said_to_be_widened(caplog):
    wrapped = inference(lambda x: x * 3)
    x = torch.randn(4, 3).bfloat16()
    for _ in range(3):
        result = wrapped(x)
    assert torch.equal(result, x.float() * 3)
    assert caplog.text.count("A bfloat16 input becomes float32") == 1


def test_bfloat16_weights_that_follow_a_float32_input_are_named():
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    wrapped = poptorch.inferenceModel(layers.bfloat16(), options())
    with pytest.warns(UserWarning, match=r"bfloat16 weights.*computes in float32") as caught:
        result = wrapped(X)
    assert len(caught) == 1
    assert result.dtype is torch.float32


def test_a_bfloat16_model_computes_as_plain_pytorch_does(caplog):
    layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.LayerNorm(5), torch.nn.GELU())
    layers = layers.bfloat16()
    x = torch.randn(4, 3).bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = poptorch.inferenceModel(layers, options())(x)
    with torch.no_grad():
        torch.testing.assert_close(result, layers(x), rtol=0, atol=0)
    assert "bfloat16" not in caplog.text


class Small(torch.utils.data.Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.ones(3) * index


def test_a_data_set_smaller_than_one_batch_is_refused_at_the_first_step():
    with pytest.raises((AssertionError, poptorch.Error), match="5"):
        next(iter(poptorch.DataLoader(options(deviceIterations=4), Small(), batch_size=2)))


def test_state_that_forward_removes_is_put_back():
    model = mistakes.Noted(lambda module: delattr(module, "held"))
    held = model.held
    with pytest.raises(poptorch.Error, match="Buffer held is removed from the model"):
        poptorch.inferenceModel(model, options())(X)
    assert model.held is held
