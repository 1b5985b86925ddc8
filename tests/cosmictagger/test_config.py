"""Keys, groups and presets of the original; what cannot be is refused, what is in vain is said."""

import copy
import math
import os
import re
from pathlib import Path

import pytest
import torch

from cosmictagger import instances, sources
from cosmictagger.commands import attributes
from cosmictagger.config.checks import dump, look_up, settle
from cosmictagger.config.composing import PRESETS, RENAMED, composed, leaves
from cosmictagger.config.keys import (
    DATA,
    MODES,
    ComputeMode,
    DataFormat,
    DataKind,
    LossBalanceScheme,
    ModeKind,
    Optimizer,
    OptimizerKind,
    Precision,
    Run,
    ScheduleKind,
    Torch,
)
from cosmictagger.config.network import BlockStyle, Connection, Network
from cosmictagger.errors import ConfigError


def configured(*overrides, preset="config", id="x"):
    return composed(preset, [f"run.id={id}", *overrides])


def settled(*overrides, preset="config"):
    config = configured(*overrides, preset=preset)
    return config, settle(config)


PLAIN = configured()


def test_defaults_train_here_on_built_in_events():
    config, notes = settled()
    assert config.mode.name is ModeKind.train
    assert config.data.name is DataKind.generated
    mode = ComputeMode.GPU if torch.cuda.is_available() else ComputeMode.CPU
    assert config.run.compute_mode is mode
    assert (config.run.iterations, config.run.distributed, notes) == (500, False, [])
    assert config.output_dir == "output/torch/small/x/"


def test_numbers_of_modes_are_those_of_the_ports():
    numbers = {mode.name: mode.value for mode in ComputeMode}
    assert numbers == {"CPU": 0, "GPU": 1, "IPU": 5, "RDU": 6}


CHOICES = (
    ("run.compute_mode=5", ComputeMode.IPU),
    ("run.precision=3", Precision.float16),
    ("mode.optimizer.name=1", OptimizerKind.rmsprop),
    ("mode.optimizer.loss_balance_scheme=light", LossBalanceScheme.light),
    ("network.connections=2", Connection.none),
    ("data.data_format=channels_first", DataFormat.channels_first),
)


def test_choices_by_name_or_number():
    config = configured(*(override for override, _ in CHOICES))
    for override, wanted in CHOICES:
        assert look_up(config, override.split("=")[0]) is wanted


def test_both_definitions_of_a21_are_there():
    ours, ports = configured("network=a21"), configured("network=a21_graphcore")
    assert (ours.network.blocks_final, ours.network.connections) == (0, Connection.sum)
    assert (ports.network.blocks_final, ports.network.connections) == (5, Connection.concat)
    assert ours.network.n_initial_filters == ports.network.n_initial_filters == 8


@pytest.mark.parametrize(
    ("preset", "network", "data", "downsample"),
    [
        ("config", "small", "generated", 3),
        ("a21", "A21", "synthetic", 1),
        ("a21-deterministic", "A21", "real", 1),
        ("polaris", "polaris", "real", 0),
        ("SCC_21", "scc21", "real", 0),
        ("uresnet2", "uresnet2", "real", 1),
        ("sn-at", "uresnet3d", "real", 0),
    ],
)
def test_presets(preset, network, data, downsample):
    config, notes = settled(preset=preset)
    assert (config.network.name, config.data.name.name) == (network, data)
    assert (config.data.downsample, notes) == (downsample, [])


def test_presets_keep_their_numbers_and_yield_to_the_command_line():
    config = configured("data=real", "run.minibatch_size=4", preset="a21-deterministic")
    assert (config.data.seed, config.framework.seed, config.run.iterations) == (12345, 54321, 5000)
    assert config.run.minibatch_size == 4
    assert configured(preset="sn-at").network.depth == 7
    published = {"config", "a21", "a21-deterministic", "polaris", "SCC_21", "sn-at", "uresnet2"}
    assert set(PRESETS) == published


def test_published_command_lines_compose():
    config = configured(
        "mode=train",
        "run.distributed=False",
        "data=real",
        "data.data_directory=/data/",
        "framework=torch",
        "run.compute_mode=IPU",
        "run.precision=3",
        "+framework.environment_variables.OMP='1'",
        preset="a21",
        id="bfloat16_2x10_1",
    )
    assert config.framework.environment_variables == {"OMP": "1"}
    assert config.output_dir == "output/torch/A21/bfloat16_2x10_1/"


def test_iterations_of_inference_are_all_events_unless_given():
    assert settled("mode=inference")[0].run.iterations is None
    assert settled("mode=inference", "run.iterations=3")[0].run.iterations == 3


def test_modes_that_do_not_exist_here():
    for mode in ("DPCPP", "XPU", "HPU", "3"):
        match = rf"={mode} was asked for, .*: CPU \(0\), GPU \(1\), IPU \(5\), RDU \(6\)\.$"
        with pytest.raises(ConfigError, match=match):
            configured(f"run.compute_mode={mode}")


def test_what_cannot_be():
    for key, value, match in (
        ("run.minibatch_size", 0, "minibatch_size=0 was asked for; the least is 1"),
        ("mode.checkpoint_iteration", 0, "checkpoint_iteration=0"),
        ("mode.optimizer.gradient_accumulation", 0, "gradient_accumulation=0"),
        ("mode.optimizer.learning_rate", -1.0, "has to be positive"),
        ("mode.optimizer.learning_rate", math.nan, "has to be positive"),
        ("data.downsample", -1, "the least is 0"),
        ("data.generator_seed", -1, "the least is 0"),
        ("framework.seed", 2**63, "the largest is"),
        ("mode.quantization_aware", True, "8-bit integers"),
        ("framework.sparse", True, "sparse=True was asked for, but no library"),
        ("output_dir", " ", "output_dir is missing or empty"),
        ("run.id", " ", "run.id is missing or empty"),
        ("run.id", ".", r"run.id=\. .* it names another folder"),
        ("run.id", "..", r"run.id=\.\. .* it names another folder"),
        ("run.id", "../x", "run.id=../x .* it has a '/'"),
        ("run.id", "a\\b", r"it has a '\\\\'"),
        ("run.id", "a\0b", r"it has a '\\x00'"),
        ("run.id", "\u00e9" * 128, "it has 256 bytes; names have at most 255"),
        ("network.name", "../x", "network.name=../x .* it has a '/'"),
    ):
        config = copy.deepcopy(PLAIN)
        owner, _, name = key.rpartition(".")
        setattr(look_up(config, owner) if owner else config, name, value)
        with pytest.raises(ConfigError, match=match):
            settle(config)


def test_older_and_newer_keys_of_blocks():
    network = configured("network.residual=False").network
    assert (network.block_style, network.residual) == (BlockStyle.none, None)
    assert configured("network=a21", "network.residual=1").network.block_style.name == "residual"
    assert configured("network=a21").network.block_style is BlockStyle.none
    with pytest.raises(ConfigError, match=r"residual=True and .*convnext.*block_style alone"):
        configured("network.residual=True", "network.block_style=convnext")
    network = configured("network.kernel_size=5", "network.vertex.active=True").network
    assert (network.kernel, network.filter_size_deepest) == (5, 5)
    assert network.vertex.active
    assert not configured("network=small").network.vertex.active  # nothing is shared
    assert configured("network=uresnet2").network.classification.active


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_gpu_without_cuda():
    with pytest.raises(ConfigError, match=r"no CUDA device. Use run.compute_mode=CPU"):
        settled("run.compute_mode=GPU")


def test_one_of_several_processes(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(ConfigError, match="one of 4 processes"):
        settled()


@pytest.mark.parametrize("text", ["12e4567", "2024_11_28", "007", "true", "a b", "-1"])
def test_names_are_text_as_typed(text):
    written = text if " " not in text else f"'{text}'"
    for prefix in ("", "+", "++"):
        config = composed("config", [f"{prefix}run.id={written}"])
        assert config.run.id == text
        assert config.output_dir == f"output/torch/small/{text}/"
    config = asked(f"output_dir={written}")
    assert config.output_dir == text
    assert composed("config", ["run.id=x", "data=real", f"data.file={written}"]).data.file == text
    variable = f"+framework.environment_variables.A={written}"
    assert asked(variable).framework.environment_variables == {"A": text}


def test_keys_in_vain_are_said_once_each():
    _, notes = settled(
        "run.distributed=True", "network.weight_decay=0.5", "framework.compile=True",
        "run.compute_mode=IPU",
    )  # fmt: skip
    assert [note.split("=")[0] for note in notes] == [
        "network.weight_decay",
        "run.distributed",
        "framework.compile",
    ]


IPU, INFERENCE, IOTEST = "run.compute_mode=IPU", "mode=inference", "mode=iotest"
IN_VAIN = (
    ("run.executable_cache=x", (), "it is for IPU mode"),
    ("run.executable_cache=x", (IPU, IOTEST), "mode=iotest runs no network"),
    ("data.data_format=channels_first", (IPU,), "it is for CPU and GPU mode"),
    ("run.broadcast_buffers=False", (), "it is for run.distributed=True"),
    ("run.horovod_num_groups=1", (), "torch.distributed connects processes"),
    ("framework.distributed_mode=horovod", (), "torch's DDP is used"),
    ("run.distributed=True", (), "this is one process"),
    ("run.num_replicas=2", (IPU, INFERENCE), "it is for mode=train"),
    ("run.aux_iterations=5", (INFERENCE,), "it is for mode=train"),
    ("mode.optimizer.learning_rate=0.1", (INFERENCE,), "it is for mode=train"),
    ("data.events=5", (INFERENCE,), "it is for mode=train"),
    ("data.aux_file=x", (INFERENCE, "data=real"), "it is for mode=train"),
    ("data.aux_events=5", ("run.aux_iterations=0",), "nothing validates"),
    ("run.profile=True", (INFERENCE,), "it is for mode=train and for IPU mode"),
    ("data.seed=5", (INFERENCE,), "events are read in order"),
    ("run.precision=bfloat16", (IOTEST,), "mode=iotest runs no network"),
    ("mode.weights_location=x", (IOTEST,), "mode=iotest runs no network"),
    ("mode.no_summary_images=False", (INFERENCE,), "it is for mode=train"),
    ("mode.summary_iteration=5", ("run.saver=False",), "run.saver is False"),
)


@pytest.mark.parametrize(("override", "others", "why"), IN_VAIN)
def test_a_key_without_effect_is_told_with_the_reason(override, others, why):
    _, notes = settled(override, *others)
    (note,) = (note for note in notes if note.startswith(override.split("=")[0]))
    assert note.startswith(f"{override} has no effect: {why}")


@pytest.mark.parametrize(
    ("override", "others"),
    [
        ("run.executable_cache=x", (IPU,)),
        ("data.data_format=channels_first", ()),
        ("run.num_replicas=2", (IPU,)),
        ("data.events=5", ()),
        ("data.aux_events=5", (INFERENCE, "run.aux_iterations=10")),
        ("run.profile=True", (INFERENCE, IPU)),
        ("data.seed=5", (INFERENCE, "data=synthetic")),
        ("mode.optimizer.loss_balance_scheme=even", (INFERENCE,)),
    ],
)
def test_a_key_with_effect_is_not_told(override, others):
    assert settled(override, *others)[1] == []


@pytest.mark.parametrize("value", ["5", "2.5", "true", "Yes", __file__])
def test_a_cache_of_executables_is_a_folder(value):
    match = "which is no folder. Name one, such as run.executable_cache=./executables, or turn"
    with pytest.raises(ConfigError, match=match):
        settled(f"run.executable_cache={value}", IPU)
    for accepted in ("", "./5", "false", "No", "0"):
        assert settled(f"run.executable_cache={accepted}", IPU)[1] == []


def test_the_dump_is_the_originals():
    lines = dump(configured("run.compute_mode=CPU")).splitlines()
    assert lines[:4] == ["", "", "-- CONFIG --", "data: "]
    assert "  compute_mode................: CPU" in lines
    assert [line for line in lines if not line.startswith(" ")][3:] == sorted(
        line for line in lines[3:] if not line.startswith(" ")
    )


@pytest.mark.parametrize("kind", [Run, Optimizer, Torch, Network, *MODES.values(), *DATA.values()])
def test_every_key_has_a_line_of_help(kind):
    assert set(attributes(kind)) == set(kind.__dataclass_fields__)


def asked(text):
    return composed("config", ["run.id=x", text])


@pytest.mark.parametrize("group", ["data", "mode", "framework", "network"])
def test_groups_take_one_of_their_choices(group):
    for value in ("null", "1", "", "[a]", "nothing", "???"):
        with pytest.raises(ConfigError, match=rf"{group}=.* was asked for; choices are "):
            asked(f"{group}={value}")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("hydra=null", "there is no key hydra"),
        ("=1", "=1 cannot be read as KEY=VALUE"),
        ("++run.nope=1", "there is no key run.nope"),
        ("~data", "~data cannot be read as KEY=VALUE"),
        ("run=null", "run=null was asked for"),
        ("run.minibatch_size=null", "minibatch_size=null was asked for"),
        ("mode.optimizer=1", "mode.optimizer=1 was asked for"),
        ("framework.environment_variables=1", "environment_variables=1 was asked for"),
    ],
)
def test_keys_that_take_something_else(text, match):
    with pytest.raises(ConfigError, match=re.escape(match)):
        asked(text)


# -- version 2.1 of the original -------------------------------------------------------------


def noted(*overrides, preset="config"):
    """The configuration of a command line of version 2.1, and what was said of it."""
    config, notes = settled(*overrides, preset=preset)
    return config, [note for note in notes if "is read as" in note]


def test_keys_of_2_1_are_understood_and_each_is_told_its_name():
    cycle = "+lr_schedule@mode.optimizer.lr_schedule=one_cycle"
    peak = "mode.optimizer.lr_schedule.peak_learning_rate=0.003"
    config, notes = noted(
        "run.run_length=25", "run.val_iteration=10", "data.paths.train=train.h5",
        "data.paths.val=/v/val.h5", "data.paths.test=/t/test.h5", "run.compute_mode=CPU",
        "data.paths.active=[train,val]", cycle, peak, "mode.optimizer.name=6",
        "mode.optimizer.weight_decay=1e-6", "data.seed=-1", "data.random_mode=0",
        "mode.optimizer.lr_schedule.decay_epochs=5",
    )  # fmt: skip
    rates = config.mode.optimizer.lr_schedule
    assert (config.run.epochs, config.run.iterations, config.run.aux_iterations) == (25, None, 10)
    assert config.data.name is DataKind.real
    assert (config.data.file, config.data.aux_file) == (os.path.abspath("train.h5"), "/v/val.h5")
    assert (config.mode.optimizer.learning_rate, rates.name) == (0.003, ScheduleKind.one_cycle)
    assert config.mode.optimizer.name is OptimizerKind.lamb
    assert notes == [
        "run.run_length=25 is read as run.epochs=25.",
        "run.val_iteration=10 is read as run.aux_iterations=10.",
        f"data.paths.train=train.h5 is read as data.file={os.path.abspath('train.h5')}.",
        "data.paths.val=/v/val.h5 is read as data.aux_file=/v/val.h5.",
        f"{cycle} is read as mode.optimizer.lr_schedule.name=one_cycle.",
        f"{peak} is read as mode.optimizer.learning_rate=0.003.",
    ]


def test_what_needs_no_other_name_is_not_spoken_of():
    assert settled("run.iterations=5", "data=real", "data.file=x.h5", "data.aux_file=")[1] == []


@pytest.mark.parametrize("units", ["iteration", "1"])
def test_a_length_in_iterations(units):
    config, notes = noted("run.run_length=7", f"run.run_units={units}")
    assert (config.run.epochs, config.run.iterations) == (None, 7)
    assert notes == ["run.run_length=7 is read as run.iterations=7."]


def test_files_by_mode():
    paths = ("data.paths.train=/a.h5", "data.paths.val=/b.h5", "data.paths.test=/c.h5")
    assert noted("mode=inference", *paths)[0].data.file == "/c.h5"
    assert noted("mode=iotest", *paths)[0].data.file == "/a.h5"
    config, notes = settled("data.paths.train=/a.h5")
    assert (config.data.file, config.data.aux_file) == ("/a.h5", "")
    assert "There is no validation: name events for it with data.paths.val=FILE." in notes
    both = settled("data.data_directory=/d", "data.file=t.h5", "data.paths.val=/b.h5")[0].data
    assert (both.data_directory, both.file, both.aux_file) == ("/d", "t.h5", "/b.h5")


def test_no_file_to_validate_on_may_be_called_null():
    config = settled("data.paths.train=/a.h5", "data.paths.val=null")[0]
    assert (config.data.file, config.data.aux_file) == ("/a.h5", "")


def test_names_of_groups_are_other_words_for_their_choices():
    config = configured("mode.name=inference", "data.name=real", "framework.name=torch")
    assert (config.mode.displays, config.data.name) == (5, DataKind.real)
    assert config.mode.name is ModeKind.inference
    assert config.framework.name == "torch"


def test_cuda_is_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config, notes = noted("run.compute_mode=CUDA")
    assert config.run.compute_mode is ComputeMode.GPU
    assert notes == ["run.compute_mode=CUDA is read as run.compute_mode=GPU."]


def test_epochs_take_the_place_of_iterations():
    assert settled("run.epochs=2", preset="uresnet2")[0].run.iterations is None
    assert settled("run.iterations=2", preset="uresnet2")[0].run.iterations == 2
    with pytest.raises(ConfigError, match=r"run.iterations=5 and run.epochs=2 were asked for"):
        settled("run.iterations=5", "run.epochs=2")
    for mode in ("inference", "iotest"):
        config, notes = settled("run.epochs=2", f"mode={mode}")
        assert config.run.iterations == (None if mode == "inference" else 500)
        assert notes == ["run.epochs=2 has no effect: only mode=train counts epochs."]


def test_the_size_of_synthetic_images():
    for version, rows in ((1, 1280), (2, 1408)):
        config = settled("data=synthetic", f"data.version={version}", "run.minibatch_size=1")[0]
        with sources.training(config, 1, instances.alone()) as events:
            assert events.stored_size == (rows, 2048)
    assert settled("data=real", "data.version=2")[1] == [
        "data.version=2 has no effect: the images of a file have their size."
    ]


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["network=segformer"], "network=segformer was .* transformer, .* such as network=uresnet"),
        (["network=cvt"], "network=cvt was .* transformer"),
        (["mode.optimizer.name=lars"], "name=lars was .* the nearest one is lamb"),
        (["mode.optimizer.name=7"], "name=7 was .* the nearest one is lamb"),
        (["mode.optimizer.name=novograd"], "name=novograd was .* the nearest one is lamb"),
        (["run.run_units=iteration"], "run_units=iteration .* run.epochs=N and run.iterations=N"),
        (["run.run_length=3", "run.run_units=steps"], "run_units=steps .* epoch or iteration"),
        (["run.run_length=many"], "run.run_length=many was asked for, but run.epochs takes"),
        (["run.epochs=0"], "run.epochs=0 was asked for; the least is 1"),
        (["data.paths.val=/v.h5"], "mode=train reads data.paths.train, .* Add data.paths.train"),
        (
            ["mode=inference", "data.paths.train=/t.h5"],
            "mode=inference reads data.paths.test, .* Add data.paths.test=FILE",
        ),
        (["data.paths.tain=/t.h5"], "no key data.paths.tain with .* mean data.paths.train"),
        (["data=generated", "data.paths.train=/t.h5"], "no key data.file with data=generated"),
        (["run.run_length=3", "run.epochs=4"], "length=3 and run.epochs=4 .* names of run.epochs"),
        (["data.file=a.h5", "data.paths.train=/b.h5"], "two names of data.file. Give one"),
        (["mode.name=2"], "mode.name=2 was asked for; choices are train"),
        (["data.version=3"], "data.version=3 was asked for; there are 1 and 2"),
        (["data.random_mode=2"], r"=2 was .* random_blocks \(0\), serial_access \(1\)"),
        (["run.compute_mode=DPCPP"], r"DPCPP was asked for, .*: CPU \(0\)"),
    ],
)
def test_mistakes_and_what_is_not_available_of_2_1(overrides, match):
    with pytest.raises(ConfigError, match=match):
        settled(*overrides)


@pytest.mark.parametrize("preset", ["segformer", "cvt"])
def test_presets_that_are_not_available(preset):
    with pytest.raises(ConfigError, match=f"--config-name={preset} was asked for, .* transformer"):
        configured(preset=preset)


_OF_NO_INTEREST = {  # set by groups, or without effect
    "mode.name", "data.name", "data.synthetic", "framework.name", "network.name",
    "network.data_format", "run.horovod_num_groups", "framework.distributed_mode",
}  # fmt: skip


def test_the_reference_has_every_key():
    page = (Path(__file__).parents[2] / "docs/reference/cosmictagger.md").read_text()
    for mode in MODES:
        for data in DATA:
            for key in set(leaves(configured(f"mode={mode}", f"data={data}"))) - _OF_NO_INTEREST:
                assert f"| `{key}` | " in page, key
    for old, new in RENAMED.items():
        assert f"| `{old}` | `{new}` |" in page
    for name in PRESETS:
        assert f"`{name}`" in page
