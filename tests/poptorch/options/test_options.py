"""The options container: values, checks, freezing and copies; and the exceptions."""

import copy
import pickle

import pytest
import torch

from poptorch import enums
from poptorch._error import Error, RecoverableError, error
from poptorch.options import Options, TensorLocationSettings, _DistributedOptions

# --- values and checks


@pytest.mark.parametrize(
    ("namespace", "setter", "arguments", "key", "value"),
    [
        ("", "deviceIterations", (4,), "device_iterations", 4),
        ("", "replicationFactor", (2,), "replication_factor", 2),
        ("", "broadcastBuffers", (False,), "broadcast_buffers", False),
        ("", "outputMode", (enums.OutputMode.All,), "output_mode", 2),
        ("", "outputMode", (enums.OutputMode.EveryN, 3), "output_return_period", 3),
        ("", "connectionType", (enums.ConnectionType.Never,), "connection_type", 2),
        ("", "useOfflineIpuTarget", (), "connection_type", 2),
        ("", "useOfflineIpuTarget", (21,), "ipu_version", 21),
        ("", "syncPattern", (enums.SyncPattern.SinglePipeline,), "sync_pattern", 1),
        ("", "maxRepeatLogs", (None,), "max_repeat_logs", 2**64 - 1),
        ("", "autoRoundNumIPUs", (), "auto_round_num_ipus", True),
        ("", "setAvailableMemoryProportion", ({"IPU3": 0.1},), "available_memory_proportion",
         {"IPU3": 0.1}),
        ("", "logDir", ("logs",), "log_dir", "logs"),
        ("", "modelName", ("net",), "model_name", "net"),
        ("", "useIpuModel", (True,), "use_model", True),
        ("", "useIpuId", (1,), "ipu_id", 1),
        ("", "disableModuleNamescope", (), "_module_namescope_enabled", False),
        ("", "relaxOptimizerAttributesChecks", (), "_relax_optimizer_checks", True),
        ("", "showCompilationProgressBar", (False,), "_show_compilation_progress_bar", False),
        ("", "sourceLocationExcludes", (["a"],), "_source_location_excludes", ["a"]),
        ("Training", "gradientAccumulation", (8,), "gradient_accumulation", 8),
        ("Distributed", "configureProcessId", (1, 4), "processId", 1),
        ("Distributed", "configureProcessId", (1, 4), "num_distributed_processes", 4),
        ("TensorLocations", "numIOTiles", (64,), "num_io_tiles", 64),
    ],
)  # fmt: skip
def test_setters_store_and_chain(namespace, setter, arguments, key, value):
    target = getattr(Options(), namespace) if namespace else Options()
    assert getattr(target, setter)(*arguments) is target
    assert getattr(target, key) == value


@pytest.mark.parametrize(
    ("namespace", "setter", "arguments", "key", "value"),
    [
        ("", "enableExecutableCaching", ("dir",), "cachePath", "dir"),
        ("", "enableExecutableCaching", (None,), "enableEngineCaching", False),
        ("", "logCycleCount", (True,), "instrumentWithHardwareCycleCounter", True),
        ("", "enableStableNorm", (True,), "enableStableNorm", True),
        ("", "enableSyntheticData", (3,), "syntheticDataMode", 2),
        ("", "enableSyntheticData", (0,), "syntheticDataMode", 0),
        ("", "updatableNamedBuffers", (["b"],), "updatableNamedBuffers", ["b"]),
        ("Training", "setAutomaticLossScaling", (True,), "automaticLossScalingSettings.enabled",
         True),
        ("Training", "setConvolutionDithering", (True,), "convolutionOptions",
         {"enableConvDithering": "true"}),
        ("Precision", "enableStochasticRounding", (True,), "enableStochasticRounding", True),
        ("Precision", "enableFloatingPointExceptions", (True,), "enableFloatingPointChecks", True),
        ("Precision", "setPartialsType", (torch.half,), "partialsTypeMatMuls", "half"),
        ("Precision", "setPartialsType", (torch.float,), "convolutionOptions",
         {"partialsType": "float"}),
        ("_Popart", "setPatterns", ({"OptimizeOnnx": False},), "patterns_level", 2),
        ("_Popart", "setEngineOptions", ({"a": "b"},), "engineOptions", {"a": "b"}),
    ],
)  # fmt: skip
def test_compiler_settings_are_stored_by_name(namespace, setter, arguments, key, value):
    options = Options()
    target = getattr(options, namespace) if namespace else options
    assert getattr(target, setter)(*arguments) is target
    assert options._Popart.options[key] == value


def test_a_namespace_can_be_given_a_class_of_its_own():
    class Third(_DistributedOptions):
        @property
        def processId(self):
            return 3

    options = Options()
    options.Distributed.__class__ = Third
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (3, 1)
    assert type(copy.deepcopy(options).Distributed) is Third
    options._freeze()
    with pytest.raises(AttributeError, match="frozen"):
        options.Distributed.__class__ = _DistributedOptions


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda o: setattr(o, "deviceIterations", 4), AssertionError, "Invalid option .* method"),
        (lambda o: setattr(o, "log_dir", 1), AssertionError, "Unexpected type int"),
        (lambda o: o.deviceIterations(0), AssertionError, "Invalid value 0 .* >= 1"),
        (lambda o: o.outputMode(enums.OutputMode.EveryN, 0), AssertionError, "EveryN"),
        (lambda o: o.modelName(1), AssertionError, "Unexpected type"),
        (lambda o: o.modelName(""), AssertionError, "not '': it is empty"),
        (lambda o: o.modelName("."), AssertionError, "it names another folder"),
        (lambda o: o.modelName("../x"), AssertionError, r"not '../x': it has a '/'"),
        (lambda o: o.modelName("a\0"), AssertionError, r"it has a '\\x00'"),
        (lambda o: o.modelName("a" * 300), AssertionError, "it has 300 bytes"),
        (lambda o: o.setAvailableMemoryProportion({"IPU0": 2.0}), AssertionError, "proportion"),
        (lambda o: o.anchorTensor("a", "b", enums.OutputMode.EveryN, 0), AssertionError, "EveryN"),
        (lambda o: o.Training.gradientAccumulation(1.5), AssertionError, "Unexpected type"),
        (lambda o: o.Training.setMeanAccumulationAndReplicationReductionStrategy(1),
         AssertionError, "Unexpected type"),
        (lambda o: o.Distributed.configureProcessId(4, 4), AssertionError, "count from 0"),
        (lambda o: o.Distributed.configureProcessId(4, 0), AssertionError, "Invalid value 0"),
        (lambda o: o._Popart.setPatterns([]), AssertionError, "must be a dict"),
        (lambda o: o._Popart.setPatterns({}, "2"), AssertionError, "must be an int"),
        (lambda o: o.TensorLocations.numIOTiles("64"), AssertionError, "even number between"),
        (lambda o: o.TensorLocations.setWeightLocation({}), AssertionError,
         "TensorLocationSettings"),
    ],
)  # fmt: skip
def test_mistakes(call, kind, words):
    with pytest.raises(kind, match=words):
        call(Options())


def test_no_grouping_is_groups_of_one():
    options = Options().inputReplicaGrouping(9, enums.CommGroupType.NoGrouping)
    assert (options.input_group_size, options.input_cgt) == (1, enums.CommGroupType.Consecutive)


@pytest.mark.parametrize("stand_in", [True, enums.OutputMode.EveryN], ids=["bool", "enum"])
def test_bools_and_members_count_as_integers(stand_in):
    options = Options()
    options.replication_factor = stand_in
    options.replicationFactor(3)
    assert options.replication_factor == 3


@pytest.mark.parametrize(
    ("name", "value"), [("random_seed", 1), ("model_name", "n"), ("use_model", True), ("ipu_id", 0)]
)
def test_some_options_do_not_exist_until_they_are_set(name, value):
    options = Options()
    assert not options.exists(name)
    options.createOrSet(**{name: value})
    assert options(name) == value
    options.deleteIfExists(name)
    assert not options.exists(name)


def test_the_seed_also_seeds_torch():
    options = Options().randomSeed(11)
    drawn = torch.rand(3)
    torch.manual_seed(options.random_seed)
    torch.testing.assert_close(torch.rand(3), drawn, rtol=0, atol=0)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1])
def test_a_seed_of_more_than_64_bits_is_refused_and_changes_nothing(seed):
    options = Options()
    with pytest.raises(AssertionError, match="randomSeed takes an integer of 64 bits"):
        options.randomSeed(seed)
    assert not options.exists("random_seed")


def test_anchors_return_nothing_and_are_stored():
    options = Options()
    assert options.anchorTensor("g", "Gradient___w") is None
    options.anchorTensor("h", "Gradient___b", enums.OutputMode.EveryN, 5)
    assert options.anchored_tensors["g"] == ["Gradient___w", True, 4, 1]
    assert options.anchored_tensors["h"] == ["Gradient___b", False, 1, 5]


def test_profiling_adds_to_the_engine_options(monkeypatch, caplog):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.all": "false"}')
    options = Options()
    options._Popart.setEngineOptions({"x": "y"})
    engine = options.enableProfiling("dir")._Popart.options["engineOptions"]
    assert engine["autoReport.directory"] == "dir"
    assert (engine["x"], engine["autoReport.all"]) == ("y", "true")
    assert "overrides autoReport.all" in caplog.text


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.Precision.halfFloatCasting(enums.HalfFloatCastingBehavior.Default),
        lambda o: o.Precision.runningStatisticsAlwaysFloat(True),
        lambda o: o.Jit.traceModel(False),
    ],
    ids=["halfFloatCasting", "runningStatisticsAlwaysFloat", "traceModel"],
)
def test_deprecated_setters_only_warn(call, caplog):
    options = Options()
    call(options)
    assert "is deprecated and has no effect" in caplog.text
    assert repr(options) == repr(Options())


def test_location_settings_chain_and_are_copied():
    settings = TensorLocationSettings().minElementsForOffChip(4).useOnChipStorage(False)
    locations = Options().TensorLocations.setOptimizerLocation(settings)
    settings.useOnChipStorage(None).useReplicatedTensorSharding()
    assert locations.toDict() == {
        "location_optimizer": {"minElementsForOffChip": 4, "onChip": False}
    }
    assert not settings.exists("onChip")


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.minElementsForOffChip(0.5),
        lambda s: s.minElementsForReplicatedTensorSharding("1"),
        lambda s: s.useOnChipStorage(1),
        lambda s: s.useIOTilesToLoad(1),
        lambda s: s.useIOTilesToStore(None),
    ],
)
def test_location_settings_check_types(call):
    with pytest.raises(AssertionError, match="Unexpected type"):
        call(TensorLocationSettings())


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("noSuchKey", True, "Unknown bool option 'noSuchKey'"),
        ("outlineThreshold", "1", "Unknown str option 'outlineThreshold' .* takes a float"),
        ("dotChecks", 1, "Unknown int option 'dotChecks'"),
        ("autoRecomputation", None, "Unknown NoneType option"),
    ],
)
def test_popart_keys_are_judged_at_compilation(key, value, words):
    options = Options()
    options._Popart.set(key, value)
    with pytest.raises(Error, match=words):
        options._Popart.check_keys()


# --- freezing and copies


@pytest.mark.parametrize(
    "change",
    [
        lambda o: o.deviceIterations(2),
        lambda o: setattr(o, "device_iterations", 2),
        lambda o: setattr(o, "_relax_optimizer_checks", True),
        lambda o: o.createOrSet(random_seed=1),
        lambda o: o.deleteIfExists("log_dir"),
        lambda o: o.anchorTensor("a", "b"),
        lambda o: o.enableExecutableCaching(None),
        lambda o: o.appendToLocationExcludes("x"),
        lambda o: o.Training.gradientAccumulation(2),
        lambda o: o.Training.setAutomaticLossScaling(True),
        lambda o: o.Precision.setPartialsType(torch.half),
        lambda o: o.Distributed.disable(),
        lambda o: o.TensorLocations.setWeightLocation(TensorLocationSettings()),
        lambda o: o.Jit.traceModel(False),
        lambda o: o._Popart.set("a", 1),
    ],
)
def test_frozen_options_refuse_changes(change):
    options = Options()
    options._freeze()
    before = repr(options)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        change(options)
    assert repr(options) == before
    options._unfreeze()
    change(options)


def test_a_frozen_seed_does_not_reseed_torch():
    options = Options()
    options._freeze()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with pytest.raises(AttributeError, match="frozen"):
        options.randomSeed(4)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, Options.clone])
def test_copies_are_independent_and_not_frozen(duplicate):
    options = Options().setAvailableMemoryProportion({"IPU0": 0.5})
    options._freeze()
    other = duplicate(options)
    assert repr(other) == repr(options)
    other.deviceIterations(9).Training.setAutomaticLossScaling(True)
    assert options.device_iterations == 1
    # A namespace's compiler settings must still be those of its own root.
    assert other._Popart.options["automaticLossScalingSettings.enabled"]
    assert "automaticLossScalingSettings.enabled" not in options._Popart.options


def test_pickles_keep_values_and_the_freeze():
    options = Options().deviceIterations(4)
    options.Precision.setPartialsType(torch.half)
    options._freeze()
    other = pickle.loads(pickle.dumps(options))  # noqa: S301 (our own bytes)
    assert repr(other) == repr(options)
    with pytest.raises(AttributeError, match="frozen"):
        other.Precision.setPartialsType(torch.float)


def test_the_text_does_not_depend_on_the_order_of_setting():
    first = Options().randomSeed(1).modelName("a")
    second = Options().modelName("a").randomSeed(1)
    first._Popart.set("dotChecks", {"a", "b", "c"}).set("firstDotOp", 1)
    second._Popart.set("firstDotOp", 1).set("dotChecks", {"c", "b", "a"})
    assert repr(first) == repr(second)
    assert repr(first).startswith("Options(_execution_strategy=PipelinedExecution(")
    assert ", Training=_TrainingOptions(" in repr(first)


# --- errors


def test_errors_carry_type_and_location():
    problem = error("no loss")
    assert (problem.message, problem.type, problem.location) == ("no loss", "poptorch_py_error", "")
    assert str(problem) == "'poptorch_py_error': no loss"
    assert str(Error("m", "t", "f.cpp:1")) == "In f.cpp:1: 't': m"


@pytest.mark.parametrize("problem", [Error("m", "t"), RecoverableError("m", "IPU_RESET")])
def test_errors_survive_pickling(problem):
    other = pickle.loads(pickle.dumps(problem))  # noqa: S301 (our own bytes)
    assert (type(other), vars(other)) == (type(problem), vars(problem))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("deviceIteration", "deviceIterations"),
        ("outputmode", "outputMode"),
        ("training", "Training"),
        ("gradientAccumulation", r"Training\.gradientAccumulation"),
        ("setOptimizerLocations", r"TensorLocations\.setOptimizerLocation"),
    ],
)
def test_a_misspelt_or_misplaced_name_is_answered_with_the_right_one(wrong, right):
    with pytest.raises(AttributeError, match=rf"of Options\. Did you mean {right}\?"):
        getattr(Options(), wrong)
