"""Blocks: annotations that keep a module as it is, and act only while it is captured."""

import copy
import io
import logging

import pytest
import torch

import poptorch
from helpers.wrapping import Calls, options
from poptorch._forward.blocks import Tracing, current

AUTO = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)


class Net(torch.nn.Module):
    """Two annotated layers."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def annotated(**second):
    net = Net()
    poptorch.BeginBlock(net.first, "one", ipu_id=0)
    poptorch.BeginBlock(net.second, **({"user_id": "two", "ipu_id": 1} | second))
    return net


def compiled(forward, strategy=None, **settings):
    """An inference wrapper around a function, compiled for one vector."""
    made = options(deviceIterations=8, autoRoundNumIPUs=True, **settings)
    made.setExecutionStrategy(strategy or poptorch.ShardedExecution(AUTO._auto))
    module = forward
    if not isinstance(forward, torch.nn.Module):
        module = Calls(lambda self, *args: forward(*args))
    wrapped = poptorch.inferenceModel(module, made)
    wrapped.compile(torch.ones(8, 4))
    return wrapped


def blocks(wrapped):
    return [row.placement.block for row in wrapped.placement.rows]


def stages(wrapped):
    return [(row.placement.block, row.placement.stage) for row in wrapped.placement.rows]


# --- BeginBlock leaves the module what it is


def test_the_same_module_comes_back_with_the_same_state():
    layer = torch.nn.Linear(4, 4)
    keys = list(layer.state_dict())
    assert poptorch.BeginBlock(layer, "a", 1) is layer
    assert type(layer) is torch.nn.Linear
    assert list(layer.state_dict()) == keys


@pytest.mark.parametrize("duplicate", [copy.deepcopy, "saved"])
def test_annotations_survive_copies_and_files(duplicate):
    net = annotated()
    if duplicate == "saved":
        file = io.BytesIO()
        torch.save(net, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = duplicate(net)
    assert poptorch.module_repr(other) == poptorch.module_repr(net)
    assert blocks(compiled(other, poptorch.ShardedExecution("one", "two"))) == ["one", "two"]


def test_a_module_begins_one_block():
    net = annotated()
    with pytest.raises(poptorch.Error, match="already been assigned to a block"):
        poptorch.BeginBlock(net.first)
    poptorch.removeBlocks(net)
    poptorch.BeginBlock(net.first, "again", ipu_id=0)


def test_functions_are_wrapped_and_other_things_refused():
    function = poptorch.BeginBlock(torch.relu, "r", ipu_id=3)
    assert isinstance(function, poptorch.LegacyBeginBlockFn)
    assert torch.equal(function(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    assert stages(compiled(function)) == [("r", 1)]
    with pytest.raises(poptorch.Error, match=r"not an instance of torch\.nn\.Module"):
        poptorch.BeginBlock(3)


def test_remove_blocks_takes_all_and_leaves_other_hooks():
    net = annotated()
    calls = []
    net.first.register_forward_pre_hook(lambda module, inputs: calls.append(module))
    poptorch.removeBlocks(net)
    assert "BeginBlock" not in poptorch.module_repr(net)
    net(torch.ones(2, 4))
    assert calls == [net.first]
    with pytest.raises(AssertionError, match=r"takes a torch\.nn\.Module"):
        poptorch.removeBlocks("net")


def test_annotated_models_run_on_the_host():
    net = annotated()
    plain = copy.deepcopy(net)
    poptorch.removeBlocks(plain)
    x = torch.ones(2, 4)
    assert torch.equal(net(x), plain(x))
    with poptorch.Block("unknown"):
        assert current() is None
    poptorch.Block.start("unknown")
    poptorch.Block.useAutoId()


# --- text form


def test_the_text_form_shows_the_annotations(capsys):
    net = annotated()
    expected = (
        "Net(\n"
        "  (first): BeginBlock(user_id=one, ipu_id=0) "
        "Linear(in_features=4, out_features=4, bias=True)\n"
        "  (second): BeginBlock(user_id=two, ipu_id=1) "
        "Linear(in_features=4, out_features=4, bias=True)\n)"
    )
    assert poptorch.module_repr(net) == expected
    assert repr(poptorch.inferenceModel(net)) == expected
    poptorch.print(net)
    assert capsys.readouterr().out == f"{expected}\n{net}\n"
    poptorch.print(3)
    assert capsys.readouterr().out == "3\n"
    with pytest.raises(AssertionError, match="module_repr takes"):
        poptorch.module_repr(3)


def test_without_annotations_the_text_form_is_torchs():
    net = torch.nn.Sequential(torch.nn.Sequential(Net()), torch.nn.ReLU())
    assert poptorch.module_repr(net) == repr(net)


# --- what happens while capturing


def test_blocks_by_context_decorator_and_start():
    @poptorch.BlockFunction("decorated", ipu_id=3)
    def decorated(x):
        return x * 4

    def forward(x):
        x = x + 1
        with poptorch.Block("context", ipu_id=1):
            x = x * 2
        poptorch.Block.start("started", ipu_id=2)
        x = x * 3
        return decorated(x)

    wrapped = compiled(forward)
    names = ["", "context", "started", "decorated"]
    assert stages(wrapped) == list(zip(names, range(4), strict=True))
    assert [row.placement.ipu for row in wrapped.placement.rows] == [0, 1, 2, 3]
    assert torch.equal(wrapped(torch.ones(8, 4)), torch.full((8, 4), 48.0))


def test_a_block_lasts_until_the_next():
    class Tail(Net):
        def forward(self, x):
            return torch.tanh(super().forward(x))

    net = Tail()
    poptorch.BeginBlock(net.first, "one")
    assert stages(compiled(net)) == [("one", 1)]


def test_entering_again_keeps_the_stage():
    net = Net()
    net.second = net.first  # shared weights: one module called twice
    poptorch.BeginBlock(net.first, "both")
    with_other = torch.nn.Sequential(net, poptorch.BeginBlock(torch.nn.Linear(4, 4), "end"), net)
    assert stages(compiled(with_other)) == [("both", 1), ("end", 2)]


def test_names_are_given_in_order_and_kept_by_hooks():
    net = Net()
    poptorch.BeginBlock(net.first)
    inner = net.second.forward

    def second(x):
        with poptorch.Block():
            return inner(x)

    net.second.forward = second
    wrapped = compiled(net)
    assert stages(wrapped) == [("0", 1), ("1", 2)]
    assert "BeginBlock(user_id=0, ipu_id=None) Linear" in repr(wrapped)
    wrapped.destroy()
    wrapped.compile(torch.ones(8, 4))
    assert stages(wrapped) == [("0", 1), ("1", 2)]


def test_a_context_without_name_is_a_new_block_at_every_entry():
    block = poptorch.Block()

    def forward(x):
        with block:
            x = x + 1
        with block:
            x = x * 2
        poptorch.Block.useAutoId()
        poptorch.Block.start()
        return x * 3

    assert stages(compiled(forward)) == [("0", 1), ("1", 2)]


def test_numbering_starts_again_at_every_compilation():
    order = ["a", "b"]

    def forward(x):
        for name in order:
            with poptorch.Block(name):
                x = x * 2
        return x

    made = options(deviceIterations=4, autoRoundNumIPUs=True)
    made.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: forward(x)), made)
    wrapped.compile(torch.ones(4, 2))
    assert stages(wrapped) == [("a", 1), ("b", 2)]
    wrapped.destroy()
    order.reverse()
    wrapped.compile(torch.ones(4, 2))
    assert stages(wrapped) == [("b", 1), ("a", 2)]


def test_operators_after_an_inner_block_belong_to_the_outer_one():
    def forward(x):
        with poptorch.Block("outer"):
            with poptorch.Block("inner"):
                x = x * 2
            return x + 1

    wrapped = compiled(forward)
    assert {r.placement.block: r.operators for r in wrapped.placement.rows} == {
        "inner": 1,
        "outer": 1,
    }


def test_every_begin_is_logged(caplog):
    with caplog.at_level(logging.DEBUG, "poptorch::python"):
        compiled(annotated(), poptorch.ShardedExecution("one", "two"))
    assert "Starting block id=two stage=1 phase=0 ipu=1" in caplog.messages


# --- errors


def test_operators_need_a_block_once_one_was_left():
    def forward(x):
        with poptorch.Block("only", ipu_id=0):
            x = x * 2
        return x + 1

    with pytest.raises(
        poptorch.Error, match=r"No active Block.*aten\.add\.Tensor at .*test_blocks\.py:\d+.*'only'"
    ):
        compiled(forward)


def test_nothing_after_the_last_block_is_fine():
    def forward(x):
        with poptorch.Block("only", ipu_id=0):
            return x * 2, x

    assert blocks(compiled(forward)) == ["only"]


@pytest.mark.parametrize("wrong", [-1, "0", 1.5])
def test_devices_are_numbers_from_zero(wrong):
    for asked in (
        lambda: poptorch.Block("a", ipu_id=wrong),
        lambda: poptorch.BeginBlock(torch.nn.Linear(2, 2), "a", ipu_id=wrong),
        lambda: poptorch.BeginBlock(torch.relu, "a", ipu_id=wrong),
    ):
        with pytest.raises(AssertionError, match="ipu_id is the number of a device, from 0, not"):
            asked()


def test_an_error_in_forward_closes_everything():
    def forward(x):
        with poptorch.Block("one"):
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        compiled(forward)
    assert current() is None


def test_a_wrapped_model_cannot_be_called_in_forward():
    inner = poptorch.inferenceModel(Net(), options())
    inner(torch.ones(2, 4))
    with pytest.raises(poptorch.Error, match="called inside the forward of another"):
        compiled(inner)


def test_the_strategy_of_the_user_keeps_nothing():
    strategy = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    compiled(annotated(ipu_id=None), strategy)
    assert strategy._numbers == {}
    tracing = Tracing(options(setExecutionStrategy=strategy))
    with tracing.open():
        assert tracing.begin("z", None).stage == 1
