"""Options from files, JSON and the environment."""

import json

import pytest

from poptorch.enums import OutputMode, ReductionType
from poptorch.options import ConfigFileError, Options


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "job.conf"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_holds_calls_and_assignments(write):
    options = Options().loadFromFile(
        write(
            """
            # a comment, then an empty line

            deviceIterations(4)  # another comment
            Training.gradientAccumulation(8)
            replication_factor = 2
            _Popart.set("outlineThreshold", 10.0)
            deviceIterations(5)
            """
        )
    )
    assert (options.device_iterations, options.replication_factor) == (5, 2)
    assert options.Training.gradient_accumulation == 8
    assert options._Popart.options["outlineThreshold"] == 10.0


def test_files_can_name_members_of_poptorch(write, monkeypatch):
    import poptorch

    monkeypatch.setattr(poptorch, "OutputMode", OutputMode, raising=False)
    options = Options().loadFromFile(write("outputMode(poptorch.OutputMode.Sum)"))
    assert options.output_mode == OutputMode.Sum


def test_a_syntax_error_names_file_line_and_text(write):
    text = "# first\ndeviceIterations(4)\n\nreplicationFactor(2,,)"
    with pytest.raises(ConfigFileError, match=r"SyntaxError at line 2 of job\.conf") as caught:
        Options().loadFromFile(write(text))
    assert str(caught.value).splitlines()[1] == "> replicationFactor(2,,)"


@pytest.mark.parametrize(
    ("line", "kind", "words"),
    [
        ("deviceIteration(4)", AttributeError, "Invalid attribute deviceIteration"),
        ("deviceIterations('4')", AssertionError, "Unexpected type str"),
        ("device_iteration = 4", AssertionError, "Invalid option device_iteration"),
        ("deviceIterations(n)", NameError, "'n' is not defined"),
    ],
)
def test_other_errors_stay_what_they_are(write, line, kind, words):
    with pytest.raises(kind, match=words):
        Options().loadFromFile(write(line))


def test_json_calls_setters():
    options = Options().from_json(
        json.dumps(
            {
                "deviceIterations": 4,
                "outputMode": "OutputMode.All",
                "Training.accumulationAndReplicationReductionType": "ReductionType.Sum",
                "_Popart.set": ["outlineThreshold", 10.0],
                "disableModuleNamescope": [],
                "setAvailableMemoryProportion": {"IPU0": 0.5},
            }
        )
    )
    assert (options.device_iterations, options.output_mode) == (4, OutputMode.All)
    assert options.Training.accumulation_and_replication_reduction_type == ReductionType.Sum
    assert options._Popart.options["outlineThreshold"] == 10.0
    assert not options._module_namescope_enabled
    assert options.available_memory_proportion == {"IPU0": 0.5}


@pytest.mark.parametrize("text", ["runs.v2", "OutputMode.Never", "enum.IntEnum", "plain"])
def test_json_strings_that_name_no_member_stay_strings(text):
    assert Options().from_json(json.dumps({"modelName": text})).model_name == text


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("[1]", AssertionError, "must be an object"),
        ('{"device_iterations": 4}', AssertionError, "name a setter"),
        ('{"Training.nothing": 4}', AttributeError, "Invalid attribute nothing"),
        ("{", ValueError, "Expecting property name"),
    ],
)
def test_json_mistakes(text, kind, words):
    with pytest.raises(kind, match=words):
        Options().from_json(text)


def test_the_environment_gives_defaults(monkeypatch):
    monkeypatch.setenv("POPTORCH_CACHE_DIR", "from_variable")
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 7}')
    options = Options()
    assert options.device_iterations == 7
    assert options._Popart.options["cachePath"] == "from_variable"
    assert options._Popart.options["enableEngineCaching"]


def test_mistakes_in_the_environment_name_the_variable(monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"nothing": 1}')
    with pytest.raises(AttributeError, match="Invalid attribute nothing") as caught:
        Options()
    assert "POPTORCH_DEFAULT_OPTIONS" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("variable", "expected"), [(None, False), ("0", False), ("", False), ("1", True)]
)
def test_the_simulator_may_come_from_the_environment(monkeypatch, variable, expected):
    monkeypatch.delenv("POPTORCH_IPU_MODEL", raising=False)
    if variable is not None:
        monkeypatch.setenv("POPTORCH_IPU_MODEL", variable)
    assert Options()._uses_ipu_model() is expected
    assert Options().useIpuModel(not expected)._uses_ipu_model() is not expected


def test_mpi_variables_make_options_distributed(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    distributed = Options().Distributed
    assert (distributed.numProcesses, distributed.processId) == (4, 3)
    distributed.disable()
    assert (distributed.numProcesses, distributed.processId) == (1, 0)


def test_variables_of_torchrun_count_where_those_of_mpi_are_not_set(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert Options().Distributed.numProcesses == 1
    monkeypatch.setenv("RANK", "3")
    distributed = Options().Distributed
    assert (distributed.numProcesses, distributed.processId) == (4, 3)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    distributed = Options().Distributed
    assert (distributed.numProcesses, distributed.processId) == (2, 1)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "two")
    with pytest.raises(AssertionError, match="OMPI_COMM_WORLD_SIZE='two' should be an integer"):
        Options()


def test_process_numbers_may_come_from_other_variables(monkeypatch):
    monkeypatch.setenv("COUNT", "8")
    monkeypatch.setenv("RANK_HERE", "5")
    distributed = Options().Distributed.setEnvVarNames("COUNT", "RANK_HERE")
    assert (distributed.num_distributed_processes, distributed.distributed_process_id) == (8, 5)
