"""What a configuration builds, what it refuses, and which weights it takes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cosmictagger import checkpoints, models
from cosmictagger.config.network import (
    NETWORKS,
    Connection,
    ConvMode,
    GrowthRate,
    Network,
    Norm,
    named,
)
from cosmictagger.errors import CheckpointError, ConfigError

TINY = {
    "n_initial_filters": 2,
    "depth": 2,
    "bottleneck_deepest": 4,
    "filter_size_deepest": 3,
    "blocks_per_layer": 1,
    "blocks_deepest_layer": 1,
    "blocks_final": 1,
}


def tiny(name="uresnet", **changes):
    torch.manual_seed(0)
    return models.build(named(name, **(TINY | changes)), (16, 24))


VARIANTS = [
    {"name": "uresnet", "residual": False},
    {"name": "uresnet", "block_style": "convnext", "normalization": "instance"},
    {"name": "uresnet3d", "block_style": "convnext", "depthwise": False, "normalization": "layer"},
    {"name": "uresnet", "normalization": "none", "bias": False},
    {"name": "uresnet", "downsampling": 0, "upsampling": 0, "growth_rate": "multiplicative"},
    {"name": "a21", "block_concat": True},
    {"name": "uresnet", "connections": "none", "blocks_final": 0, "blocks_per_layer": 0},
    {"name": "uresnet3d"},
    {"name": "uresnet3d", "downsampling": 0, "upsampling": 0, "connections": "sum"},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: " ".join(map(str, v.values())))
def test_three_planes_in_three_planes_of_scores_out(variant):
    module = tiny(**variant)
    logits = module(torch.rand(2, 3, 16, 24))
    assert isinstance(logits, tuple)
    assert [plane.shape for plane in logits] == [(2, 3, 16, 24)] * 3
    sum(plane.square().mean() for plane in logits).backward()
    assert [name for name, value in module.named_parameters() if value.grad is None] == []


def test_planes_share_weights_and_not_statistics():
    module = tiny(normalization="batch", block_concat=True, name="a21")
    image = torch.rand(2, 3, 16, 24)
    alone = [module(image[:, [p, p, p]])[0] for p in range(3)]
    together = module(image)
    for plane, by_itself in zip(together, alone, strict=True):
        torch.testing.assert_close(plane, by_itself)
    assert int(module.initial_convolution.norm.num_batches_tracked) == 4 * 3


def test_planes_meet_at_the_smallest_size_only():
    for name, apart in (("a21", True), ("a21", False), ("uresnet3d", False)):
        module = tiny(name, block_concat=apart, normalization="none")
        image = torch.rand(1, 3, 16, 24)
        other = image.clone()
        other[:, 2] += 1
        assert torch.equal(module(image)[0], module(other)[0]) == apart


def test_convolutions_start_as_xavier_without_bias():
    module = models.build(named("a21"), (320, 512))
    blocks = module.net_core.down_blocks.blocks
    bound = (6 / (8 * 9 + 8 * 9)) ** 0.5
    assert 0.9 * bound < blocks[0].conv.weight.abs().max() <= bound
    assert not blocks[0].conv.bias.any()


@pytest.mark.parametrize("size", [(320, 500), (300, 512), (0, 512)])
def test_an_image_that_cannot_be_halved_so_often(size):
    message = rf"{size[0]} x {size[1]}\..*for images of 1280 x 2048 a data.downsample of 0, 1, 2\."
    with pytest.raises(ConfigError, match=message):
        models.build(named("a21"), size)


@pytest.mark.parametrize(("depth", "fitting"), [(7, [0, 1]), (6, [0, 1, 2]), (8, [0]), (9, [])])
def test_which_values_of_downsample_fit(depth, fitting):
    for downsample in range(4):
        network, size = Network(depth=depth), (1280 >> downsample, 2048 >> downsample)
        if downsample in fitting:
            models.check_image_size(network, size)
        else:
            with pytest.raises(ConfigError, match=f"depth {depth}"):
                models.check_image_size(network, size)


def test_choices_have_names_and_numbers():
    network = Network(normalization=0, connections="sum", conv_mode="1", growth_rate="0")
    assert network.normalization is Norm.none
    assert network.connections is Connection.sum
    assert network.conv_mode is ConvMode.conv_3D
    assert network.growth_rate is GrowthRate.multiplicative
    assert Network(connections="Connection.none").connections is Connection.none
    assert [network.filters(level) for level in range(3)] == [16, 32, 64]
    assert [Network().filters(level) for level in range(3)] == [16, 32, 48]


REFUSED = [
    ({"connections": "glue"}, r"network.connections=glue.*Known: concat \(0\), sum \(1\)"),
    ({"kernel_size": 2}, "kernel_size=2.*odd"),
    ({"vertex": {"n_layers": -1}}, "network.vertex.n_layers=-1.*least is 0"),
    ({"classification": {"weight": float("nan")}}, "network.classification.weight=nan.*least is 0"),
    ({"vertex": {"active": True, "depth": 7}}, r"vertex.depth=7.*network.depth=6"),
    ({"vertex": {"active": True}, "conv_mode": 1}, "vertex.active=True.*Choose .*conv_2D"),
    ({"classification": {"active": True}, "conv_mode": 1}, "classification.active=True.*conv_2D"),
    ({"depth": 0}, "network.depth=0.*least is 1"),
    ({"n_initial_filters": 0}, "network.n_initial_filters=0"),
    ({"filter_size_deepest": 4}, "filter_size_deepest=4.*odd"),
    ({"block_concat": True, "conv_mode": 1}, "block_concat=True.*Choose conv_2D"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[next(iter(c)) for c, _ in REFUSED])
def test_networks_that_do_not_exist(changes, message):
    with pytest.raises(ConfigError, match=message):
        Network(**changes)


def test_a_network_without_a_name_in_the_list():
    with pytest.raises(ConfigError, match=r"network=unet.*Known: uresnet, a21"):
        named("unet")
    assert {named(name).name for name in NETWORKS} >= {"A21", "uresnet3d", "polaris"}


def checkpoint(path, network, prefix="", **changes):
    """As the original writes it: the learning rate in the schedule is a numpy number."""
    weights = {prefix + name: value for name, value in network.state_dict().items()}
    content = {
        "global_step": 7,
        "state_dict": weights | changes,
        "optimizer": {"state": {}, "param_groups": [{"lr": np.float64(3e-4), "params": [0]}]},
        "scheduler": {"base_lrs": [1.0], "_last_lr": [np.float64(3e-4)]},
    }
    torch.save(content, path)
    return path


def load_weights(network, path):
    content = checkpoints.load(path)
    weights = checkpoints.network_weights(content)
    checkpoints.check_fits(weights, network, path)
    network.load_state_dict(weights)
    return content["global_step"]


@pytest.mark.parametrize("prefix", ["", "module."])
def test_weights_of_the_original_are_loaded(tmp_path, prefix):
    source, network = tiny(), tiny()
    for parameter in source.parameters():
        parameter.data.uniform_()
    source(torch.rand(1, 3, 16, 24))
    assert load_weights(network, checkpoint(tmp_path / "a.ckpt", source, prefix)) == 7
    for name, value in source.state_dict().items():
        assert torch.equal(network.state_dict()[name], value), name


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_a_checkpoint_runs_no_code(tmp_path):
    marker, path = tmp_path / "it ran", tmp_path / "evil.ckpt"
    torch.save({"state_dict": tiny().state_dict(), "extra": Evil(marker)}, path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_weights(tiny(), path)
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()  # it would have run


def test_weights_of_another_network_change_nothing(tmp_path):
    network = tiny("a21")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for other in (tiny("uresnet"), tiny("a21", n_initial_filters=3), tiny("a21", depth=1)):
        path = checkpoint(tmp_path / "other.ckpt", other)
        with pytest.raises(CheckpointError, match=r"another network.*network\.\* settings"):
            load_weights(network, path)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
