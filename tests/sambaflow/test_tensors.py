"""Tensors with names, and what the namespace does with them."""

import copy

import pytest
import torch

from helpers.samba_models import Dense, Net
from sambaflow import samba
from sambaflow.samba import SambaTensor


def test_memory_is_shared():
    plain = torch.zeros(3)
    tensor = samba.from_torch_tensor(plain, name="x", batch_dim=0)
    plain[0] = 5
    assert tensor[0] == 5
    assert samba.to_torch(tensor).data_ptr() == plain.data_ptr()
    assert type(samba.to_torch(tensor)) is torch.Tensor
    assert (tensor.sn_name, tensor.batch_dim) == ("x", 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.bfloat16().float(),
        lambda t: t.to(torch.float64),
        lambda t: t.detach().clone().contiguous(),
        lambda t: t.requires_grad_(),
        lambda t: t.cpu().rdu(),
        copy.deepcopy,
    ],
)
def test_another_form_keeps_the_name(change):
    changed = change(samba.randn(2, 3, name="image", batch_dim=0))
    assert (type(changed), changed.sn_name, changed.batch_dim) == (SambaTensor, "image", 0)


def test_another_value_has_a_name_of_its_own():
    first, second = samba.randn(2, name="image") + 1, samba.randn(2)
    assert first.sn_name.startswith("sambatensor_")
    assert first.sn_name != second.sn_name
    assert first.sn_name == first.sn_name


def test_it_computes_with_torch_tensors():
    x = samba.randn(2, 3, name="x", requires_grad=True)
    assert x.is_leaf
    result = torch.nn.functional.linear(x, torch.ones(4, 3)).sum() * torch.tensor(2.0)
    result.backward()
    assert isinstance(result, SambaTensor)
    assert torch.equal(x.grad, torch.full((2, 3), 8.0))


def test_functions_of_torch_give_tensors_with_names():
    joined = samba.cat([samba.ones(2), samba.zeros(1)], name="joined")
    assert joined.sn_name == "joined"
    assert torch.equal(joined, torch.tensor([1.0, 1.0, 0.0]))
    parts = samba.split(joined, 2)
    assert [type(part) for part in parts] == [SambaTensor] * 2
    assert torch.equal(samba.sigmoid(samba.randn_like(joined) * 0), torch.full((3,), 0.5))
    classes = samba.randint(10, (4,), name="label", batch_dim=0)
    assert (classes.dtype, classes.shape, classes.sn_name) == (torch.int64, (4,), "label")
    assert samba.float32 is torch.float32


def test_a_tensor_without_data():
    tensor = SambaTensor(shape=(2, 3), dtype=torch.int64, name="later")
    assert (tensor.has_data, tuple(tensor.shape), tensor.dtype) == (False, (2, 3), torch.int64)
    with pytest.raises(ValueError, match="later has a shape and no data"):
        tensor.torch()
    made = SambaTensor(shape=(2,), name="x", materializer=lambda: torch.tensor([1.0, 2.0]))
    assert torch.equal(samba.to_torch(made), torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match="needs torch_tensor, or a shape"):
        SambaTensor()


def test_its_text():
    tensor = SambaTensor(torch.zeros(2, 3), name="x", batch_dim=0, named_dims=("B", "C"))
    assert repr(tensor) == (
        "samba.SambaTensor(name: x, shape: (2, 3), dtype: torch.float32, batch_dim: 0, "
        "named_dims: ('B', 'C'), keep_data: True, materializer_provided: False)"
    )


def test_a_model_gets_names_in_place():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Net())
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    assert samba.from_torch_model_(model, parent_module_prefix="Top") is model
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert model[1].layer.weight.sn_name == "top__1__layer__weight"
    assert model[1].layer.sn_name == "top__1__layer"
    assert isinstance(model[0].weight, samba.SambaParameter)
    assert isinstance(model[0].weight, torch.nn.Parameter)
    assert model[1].norm.running_mean.__class__ is torch.Tensor
    model[0](torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_before_loading_a_parameter_is_the_hosts():
    model = samba.from_torch_model_(Dense())
    weight = model.layer.weight
    assert weight.sn_grad is None
    assert torch.equal(weight.sn_data, weight)
    assert weight.has_data
    assert weight.rdu() is weight
    assert type(weight.torch()) is torch.Tensor
