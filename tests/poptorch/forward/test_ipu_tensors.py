"""Forward sees its tensors on a device named "ipu"; tensors made without a device join them."""

import pytest
import torch

from helpers.wrapping import inference

X = torch.linspace(-1, 1, 6).reshape(2, 3)
NO_ARGUMENTS = {
    "arange": (3,),
    "empty": (3,),
    "full": ((3,), 1.0),
    "full_like": (X, 1.0),
    "linspace": (0, 1, 3),
    "logspace": (0, 1, 3),
    "ones": (3,),
    "rand": (3,),
    "randint": (5, (3,)),
    "randn": (3,),
    "randperm": (3,),
    "tensor": ([1.0, 2.0, 3.0],),
    "zeros": (3,),
    "zeros_like": (X,),
    "normal": (0.0, 1.0, (3,)),
}


def test_the_device_is_named_ipu_in_forward_only():
    weight = torch.nn.Parameter(torch.ones(3))
    seen = {}

    def forward(x):
        y = x * 2
        seen.update(input=x.device, made=y.device, outside=weight.device)
        return y

    result = inference(forward)(X)
    assert seen["input"].type == seen["made"].type == "ipu"
    assert seen["outside"].type == "cpu"
    assert result.device.type == X.device.type == "cpu"


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + torch.ones(3, device=x.device),
        lambda x: x + torch.ones(3, device="ipu"),
        lambda x: x + torch.ones(3).to(x.device),
        lambda x: x + torch.ones(3).to("ipu:0"),
        lambda x: x + torch.ones(3).to(device="ipu", dtype=torch.float32),
        lambda x: x.to("cpu") + x.new_ones(3, device=x.device),
        lambda x: x + torch.tensor([1.0], device=x.device),
        lambda x: x + torch.ones(3) if x.device.type == "ipu" else x - 1,
    ],
)
def test_that_device_can_be_given_to_torch(use):
    assert torch.equal(inference(use)(X), X + 1)


def test_autocast_of_that_device_can_be_turned_off():
    def forward(x):
        with torch.autocast(x.device.type, enabled=False):
            return x + 1

    assert torch.equal(inference(forward)(X), X + 1)


def test_torch_itself_sees_where_tensors_are():
    def forward(x):
        return torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)

    assert torch.equal(inference(forward)(X), X.sin())


@pytest.mark.parametrize("name", NO_ARGUMENTS)
def test_a_factory_without_device_warns(name, caplog):
    factory = getattr(torch, name)
    inference(lambda x: x + 0 * factory(*NO_ARGUMENTS[name])).compile(X)
    assert f"No device set in torch.{name}(): forcing to IPU" in caplog.messages
    caplog.clear()
    inference(lambda x: x + factory(*NO_ARGUMENTS[name], device=x.device)).compile(X)
    assert not caplog.messages
    factory(*NO_ARGUMENTS[name])
    assert not caplog.messages


def test_each_call_warns_and_others_do_not(caplog):
    def forward(x):
        noise = torch.normal(x, 1.0)
        return x + torch.zeros(3) + torch.zeros(3, device=None) + torch.ones_like(x) + 0 * noise

    inference(forward).compile(X)
    assert caplog.messages == ["No device set in torch.zeros(): forcing to IPU"] * 2


def test_distributions_do_not_look_at_values():
    # torch's compiler, once used in a process, turns the checks off for good.
    torch.distributions.Distribution.set_default_validate_args(True)

    def forward(x):
        return torch.distributions.Normal(x, x.abs() + 1).log_prob(x)

    assert torch.equal(inference(forward)(X), forward(X))
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        torch.distributions.Normal(0.0, torch.tensor(-1.0))
