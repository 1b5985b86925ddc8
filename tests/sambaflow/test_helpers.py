"""The smaller parts: loader, utilities, checkpoints, hints."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from helpers.samba_models import Dense, Net, batch, named, rows
from sambaflow import logging as samba_logging
from sambaflow import samba
from sambaflow.errors import UsageError
from sambaflow.mac.metadata import ConvTilingMetadata
from sambaflow.samba import SambaTensor, _session, utils
from sambaflow.samba.directives import op_fusion
from sambaflow.samba.env import disable_sgd_stoc, enable_conv_grad_accum_stoc
from sambaflow.samba.lazy_param import lazy_param
from sambaflow.samba.materialize import materialize
from sambaflow.samba.profiler import Profiler
from sambaflow.samba.sambaloader import SambaLoader
from sambaflow.samba.test import consistency_test
from sambaflow.samba.utils import checkpoint
from sambaflow.samba.utils.benchmark_acc import AccuracyReport
from sambaflow.samba.utils.dataset.mnist import dataset_transform


@pytest.fixture(autouse=True)
def _unsaid():
    samba_logging._said.clear()


# -- loader ------------------------------------------------------------------------------------


def digits():
    data = TensorDataset(torch.arange(6.0).reshape(6, 1), torch.arange(6))
    return DataLoader(data, batch_size=2)


def test_the_loader_gives_names():
    loader = SambaLoader(digits(), ["image", "label"])
    batches = list(loader)
    assert len(loader) == len(batches) == 3
    image, label = batches[1]
    assert (image.sn_name, label.sn_name, image.batch_dim) == ("image", "label", 0)
    assert torch.equal(samba.to_torch(label), torch.tensor([2, 3]))


def test_the_loader_calls_the_hook_and_keeps_the_original():
    loader = SambaLoader(
        digits(), ["image"], function_hook=lambda b: [b[0] * 2], return_original_batch=True
    )
    (image,), original = next(iter(loader))
    assert torch.equal(image, original[0] * 2)


# -- utilities ---------------------------------------------------------------------------------


def test_results_are_compared(capsys):
    wanted = torch.tensor([1.0, float("inf"), float("nan")])
    utils.assert_close(samba.from_torch(wanted.clone()), wanted, "same", visualize=True)
    assert "same: largest difference 0, allowed 0.003" in capsys.readouterr().out
    utils.assert_close(torch.tensor(100.2), torch.tensor(100.0), "near", threshold=3e-3)
    with pytest.raises(AssertionError, match=r"far: differs by up to 0\.1, allowed 0\.003"):
        utils.assert_close(torch.tensor(0.1), torch.tensor(0.0), "far")
    with pytest.raises(AssertionError, match=r"shape \[2\] was computed, \[\] is right"):
        utils.assert_close(torch.ones(2), torch.tensor(0.0), "other")
    with pytest.raises(AssertionError, match="differs by up to nan"):
        utils.assert_close(torch.tensor(float("nan")), torch.tensor(0.0), "lost")


def test_dtypes_by_name():
    assert utils.parse_dtype("bf16") is torch.bfloat16
    assert utils.parse_dtype("torch.float32") is torch.float32
    assert utils.parse_dtype(torch.int8) is torch.int8
    with pytest.raises(UsageError, match="There is no dtype 'float33'"):
        utils.parse_dtype("float33")


def test_seeds_and_processes(monkeypatch):
    utils.set_seed(3)
    first = (torch.rand(1), np.random.rand())
    utils.set_seed(3)
    assert (torch.rand(1), np.random.rand()) == first
    assert (utils.get_world_size(), utils.get_rank(), utils.is_main_process()) == (1, 0, True)
    monkeypatch.setenv("PMI_RANK", "1")
    assert (utils.get_rank(), utils.is_main_process()) == (1, False)
    assert utils.get_file_dir(__file__).endswith("sambaflow")


def test_first_gradients():
    outputs = [SambaTensor(shape=(2,), dtype=torch.float32, name=name) for name in ("a", "b")]
    given = {"b": torch.tensor([1.0, 2.0])}
    gradients = utils.init_output_grads(outputs, [torch.tensor(3.0)], given)
    assert torch.equal(gradients[0], torch.full((2,), 3.0))
    assert torch.equal(outputs[1].sn_grad, given["b"])


def test_gradients_of_two_processes_are_averaged(load, monkeypatch):
    # One process plays both: the other one's gradients are zero, so the mean is half of its own.
    model = samba.from_torch_model_(Dense())
    before = model.layer.weight.detach().clone()
    load(model, named(rows(0)), samba.optim.SGD(model.parameters(), lr=1.0))
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda gradient: None)
    samba.session.run(named(rows(0)), data_parallel=True, reduce_on_rdu=True)
    loss, _ = Dense.forward(model, *rows(0))
    loss.backward()
    assert torch.equal(model.layer.weight.sn_data, before - model.layer.weight.grad / 2)


def test_accuracies_are_written(tmp_path):
    AccuracyReport(val_accuracy=torch.tensor(0.5), batch_size=4).save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == {"val_accuracy": 0.5, "batch_size": 4}


def test_digits_are_normalised():
    image = np.zeros((28, 28), dtype=np.uint8)
    image[0, 0] = 255
    tensor = dataset_transform({"image_size": 32})(image)
    assert tensor.shape == (1, 32, 32)
    assert tensor[0, 2, 2] == pytest.approx((1 - 0.1307) / 0.3081)
    assert tensor[0, 0, 0] == pytest.approx(-0.1307 / 0.3081)


# -- checkpoints and weights -------------------------------------------------------------------


def test_sharded_checkpoints(tmp_path):
    source, target = Dense(), samba.from_torch_model_(Dense())
    state = source.state_dict()
    for name, value in state.items():
        checkpoint.save_tensors({name: value}, tmp_path / f"{name}.bin")
    checkpoint.load_sharded_checkpoint(target, tmp_path)
    assert torch.equal(target.layer.weight, source.layer.weight)
    places = {name: f"{name}.bin" for name in state}
    (tmp_path / "model.index.json").write_text(json.dumps({"weight_map": places}))
    checkpoint.load_sharded_checkpoint(target, tmp_path)
    (tmp_path / "layer.bias.bin").unlink()
    with pytest.raises(UsageError, match=r"layer.bias.bin is missing. Copy the whole folder"):
        checkpoint.load_sharded_checkpoint(target, tmp_path)


def test_a_damaged_shard_is_named(tmp_path):
    path = tmp_path / "w.pt"
    checkpoint.save_tensors(Dense().state_dict(), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    for damaged, reason in ((data, "not what was written"), (b"\x80\x02x", "")):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=f"w.pt cannot be read: .*{reason}.*Copy the whole"):
            checkpoint.load_sharded_checkpoint(Dense(), tmp_path)


def test_checkpoints_that_do_not_fit(tmp_path):
    with pytest.raises(UsageError, match=r"has no \*.index.json, \*.bin or \*.pt"):
        checkpoint.load_sharded_checkpoint(Dense(), tmp_path)
    checkpoint.save_tensors(Dense().bfloat16().state_dict(), tmp_path / "w.pt")
    with pytest.raises(UsageError, match=r"torch.bfloat16 there, .* torch.float32 in the model"):
        checkpoint.load_sharded_checkpoint(Dense(), tmp_path)
    checkpoint.load_sharded_checkpoint(Dense(), tmp_path, ignore_dtype_mismatch=True)
    with pytest.raises(UsageError, match="are on one side only"):
        checkpoint.load_sharded_checkpoint(Net(), tmp_path)


def test_weights_that_are_made_later():
    with lazy_param():
        model = Net()
    assert model.layer.weight.device.type == "meta"
    model = materialize(model)
    assert model(batch(0)[0]).isfinite().all()

    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

    with lazy_param():
        odd = Odd()
    with pytest.raises(UsageError, match=r"itself .Odd. has tensors without memory and no reset"):
        materialize(odd)


# -- profiler, tests, hints ----------------------------------------------------------------------


def test_events_are_timed(tmp_path, capsys):
    profiler = Profiler()
    with profiler.event("block"):
        pass

    @profiler.event("call")
    def called():
        return 5

    assert [called() for _ in range(3)] == [5, 5, 5]
    profiler.end_event(profiler.start_event("pair"))
    profiler.start_event("open")
    assert len(profiler.seconds("call", warmup=1)) == 2
    assert profiler.get_throughputs(["call", "missing"], 4)["call"] > 0
    profiler.print_statistics(["call", "open"], num_samples_per_iter=4)
    said = capsys.readouterr().out
    assert "call: 3 x, mean " in said
    assert "samples/s" in said
    assert "open: no events" in said
    profiler.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events] == ["block", "call", "call", "call", "pair"]
    samba.session.start_runtime_profile()
    with samba.session.profiler.event("fwd"):
        pass
    samba.session.end_runtime_profile(tmp_path / "run.json")
    assert (tmp_path / "run.json").exists()


def test_functions_that_are_not_consistent():
    calls = []

    @consistency_test()
    def draws():
        return [("drawn", torch.rand(2))]

    @consistency_test()
    def counts():
        calls.append(1)
        return [("calls", torch.tensor(len(calls)))]

    assert next(iter(draws()))[0] == "drawn"
    with pytest.raises(AssertionError, match="calls: differs by up to 1"):
        counts()


def test_hints_are_said_once(capsys):
    for _ in range(2):
        enable_conv_grad_accum_stoc()
        disable_sgd_stoc()
        samba.session.enable_pinned_memory()
        utils.create_mac_resource_report()
        samba.session.load_dynamic_dims("file")
        with op_fusion("conv"), samba.session._add_directives("x"), samba.patched_torch():
            pass
    said = capsys.readouterr().err
    assert said.count("enable_conv_grad_accum_stoc is accepted and has no effect") == 1
    assert said.count("has no effect") == 7
    assert samba.is_internal() is False
    assert samba.session.get_dropout_rate_argin_names() == []


def test_hints_of_compile_are_said(load, capsys):
    model = samba.from_torch_model_(Net().eval())
    tiling = {ConvTilingMetadata.key: ConvTilingMetadata(original_size=(8, 8))}
    load(model, named(batch(0))[:1], metadata=tiling, squeeze_bs_dim=True, madeup=True)
    said = capsys.readouterr().err
    assert "session.compile(metadata=...) is accepted and has no effect" in said
    assert "session.compile(squeeze_bs_dim=...) is accepted" in said
    assert "session.compile(madeup=...) is accepted and has no effect: it steers" in said
    _session._say_hints("trace_graph", {"app_dir": "here", "config_dict": {"lr": 0.1}})
    assert not capsys.readouterr().err


def test_the_loader_misses_names():
    with pytest.raises(UsageError, match="names image, but a batch has 2 items"):
        next(iter(SambaLoader(digits(), ["image"])))
