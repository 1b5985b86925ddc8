"""Two recorded runs: what differs is named, in its place, and losses part where they do."""

import dataclasses
import json
import re
import shutil

import pytest
import torch

import poptorch
from abele.__main__ import main
from abele.differences import why_runs_differ
from abele.report import read_journal, read_run
from abele.targets import ENVIRONMENT


class Net(torch.nn.Module):
    """A layer and what runs change: a function of its result, and a constant."""

    def __init__(self, activation, scale=1.0):
        super().__init__()
        self.layer, self.scale = torch.nn.Linear(4, 3), torch.tensor([scale, 1.0, 1.0])
        self.activation = activation

    def forward(self, x, y):
        x = self.layer(x)
        if self.activation == "relu":
            return self.loss(torch.relu(x), y)
        if self.activation == "dropout":
            return self.loss(torch.nn.functional.dropout(x), y)
        return self.loss(torch.tanh(x), y)

    def loss(self, x, y):
        return torch.nn.functional.mse_loss(x * self.scale, y)


def line_of(text):
    with open(__file__) as file:
        number = next(n for n, line in enumerate(file, 1) if text in line)
    return f"test_runs.py:{number} in forward"


def recorded(
    folder, *, seed=3, rate=0.1, activation="relu", scale=1.0, rows=2, calls=5, iterations=1,
    data=None, schedule=None,
):  # fmt: skip
    """A run of a few updates; its folder."""
    torch.manual_seed(seed)
    model = Net(activation, scale)
    options = poptorch.Options().showCompilationProgressBar(False).randomSeed(seed)
    options.deviceIterations(iterations)
    options.enableProfiling(str(folder.parent)).modelName(folder.name)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    trainer = poptorch.trainingModel(model, options, optimizer)
    torch.manual_seed(data or seed)
    schedule = schedule or {}
    for call in range(calls):
        if call in schedule:
            optimizer.param_groups[0]["lr"] = schedule[call]
            trainer.setOptimizer(optimizer)
        trainer(torch.randn(rows * iterations, 4), torch.randn(rows * iterations, 3))
    if calls in schedule:
        optimizer.param_groups[0]["lr"] = schedule[calls]
        trainer.setOptimizer(optimizer)
    trainer.destroy()
    return folder


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Makes runs, interpreted; each once."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def run(name, **how):
        if name not in made:
            made[name] = recorded(folder / name, **how)
        return made[name]

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(ENVIRONMENT, "reference")
        patched.setenv("POPLAR_ENGINE_OPTIONS", '{"autoReport.outputExecutionProfile": "false"}')
        yield run


@pytest.fixture
def first(make):
    return make("first")


def changed(folder, to, change):
    """A copy of a run whose record says something else."""
    shutil.copytree(folder, to)
    change(read_run(folder)).write(to)
    return to


def of_program(**values):
    """What changes the program of a run; each value is made from the program."""

    def change(run):
        (program,) = run.programs
        given = {name: make(program) for name, make in values.items()}
        return dataclasses.replace(run, programs=(dataclasses.replace(program, **given),))

    return change


def test_the_same_run_twice_differs_in_nothing(first, make, capsys):
    assert main(["diff", str(first), str(make("again"))]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].endswith("are the same.")
    assert "Losses: the same bit for bit, all 5 that both records have." in printed


def test_another_seed_is_an_option_and_losses_part_at_once(first, make):
    answer = why_runs_differ(first, make("seed", seed=4))
    (option,) = answer.options
    assert (option.what, option.first, option.second) == ("Options.randomSeed", "3", "4")
    assert (answer.losses.first.update, answer.losses.parted) == (1, 5)
    assert (answer.programs, answer.kernels, answer.machine, answer.reasons) == ((), (), (), ())
    assert answer.status == 1


def test_another_learning_rate_is_what_differs(first, make):
    answer = why_runs_differ(first, make("rate", rate=0.2))
    (rate,) = answer.optimizer
    assert (rate.what, rate.first, rate.second, rate.change) == ("lr", "0.1", "0.2", 1.0)
    assert answer.recorded
    assert answer.reasons == ()
    assert str(answer).splitlines()[1:3] == ["Optimizer: 1 difference.", "  lr: 0.1 and 0.2"]


def test_a_rate_that_changes_in_one_run_is_named_with_its_first_update(first, make):
    (rate,) = why_runs_differ(first, make("slower", schedule={3: 0.05})).optimizer
    assert (rate.what, rate.first, rate.second) == ("lr, from update 4", "0.1", "0.05")
    both = [make("slower", schedule={3: 0.05}), make("faster", schedule={2: 0.2, 4: 0.3})]
    assert why_runs_differ(*both).optimizer[0].what == "lr, from update 3"


def test_what_records_do_not_have_is_among_the_reasons(first, make):
    answer = why_runs_differ(first, make("data", data=4))
    assert not answer.recorded
    assert answer.reasons[0].startswith("Records do not have the data")
    assert "Options.randomSeed is 3 in both." in answer.reasons
    assert "Nothing that the records have differs, but losses do." in str(answer)


def test_threads_and_seeds_that_nobody_has_set_are_among_the_reasons(first, make, tmp_path):
    def without_seed(run):
        machine = dataclasses.replace(run.machine, threads=4)
        options = tuple(each for each in run.options if each.name != "Options.randomSeed")
        return dataclasses.replace(run, machine=machine, options=options)

    runs = (first, make("seed", seed=4))
    copies = [changed(each, tmp_path / each.name, without_seed) for each in runs]
    reasons = why_runs_differ(*copies).reasons
    assert "No option has set a seed" in reasons[1]
    assert reasons[2].startswith("With 4 threads")


def test_both_losses_are_those_that_the_runs_returned(first, make):
    other = make("rate", rate=0.2)
    answer = why_runs_differ(first, other)
    losses = [[e.loss for e in read_journal(each).windows] for each in (first, other)]
    pairs = list(zip(*losses, strict=True))[1:]
    assert (answer.losses.first.first, answer.losses.first.second) == pairs[0]
    far = max(pairs, key=lambda pair: abs(pair[0] - pair[1]) / max(pair))
    assert (answer.losses.largest.first, answer.losses.largest.second) == far


def test_another_line_of_the_model_is_named(first, make):
    answer = why_runs_differ(first, make("tanh", activation="tanh"))
    (program,) = answer.programs
    one, other = program.operations
    assert "aten.relu.default(" in one.text
    assert "aten.tanh.default(" in other.text
    assert one.phase == other.phase == "forward"
    assert (one.line, other.line) == (line_of("torch.relu(x)"), line_of("torch.tanh(x)"))
    assert program.by == "capture"
    assert program.fingerprints[0] != program.fingerprints[1]
    assert {each.what for each in answer.operators} >= {"aten.relu.default in step"}
    assert f"in forward, {one.line}" in str(answer)


def test_inputs_of_another_shape_are_named(first, make):
    (program,) = why_runs_differ(first, make("rows", rows=6)).programs
    assert ("input0", "f32[2, 4] input", "f32[6, 4] input") in program.slots


def test_constants_with_other_values_are_named(first, make):
    answer = why_runs_differ(first, make("scaled", scale=2.0))
    (program,) = answer.programs
    assert program.operations == (None, None)
    assert len(program.constants) == 1
    assert f"Values of constants: {program.constants[0]}." in str(answer)


def test_a_run_that_ended_earlier_is_no_other_as_far_as_it_went_but_differs(first, make):
    answer = why_runs_differ(first, make("short", calls=3))
    assert (answer.losses.compared, answer.losses.parted) == (3, 0)
    assert answer.status == 1
    assert "Updates: 5 and 3." in str(answer)


def test_programs_without_fingerprints_are_compared_by_their_texts(first, make, tmp_path):
    for name, how, count in (("same", first, 0), ("other", make("tanh", activation="tanh"), 1)):
        copy = changed(how, tmp_path / name, of_program(fingerprint=lambda program: ""))
        assert len(why_runs_differ(first, copy).programs) == count


def test_what_is_behind_the_cut_of_a_text_is_not_compared(first, tmp_path):
    def cut(program):
        lines = program.text.splitlines()
        return "\n".join([*lines[:-2], lines[-2][:-4], "# cut off here"])

    other = changed(first, tmp_path / "cut", of_program(text=cut, fingerprint=lambda program: ""))
    assert why_runs_differ(first, other).programs == ()


def test_programs_that_passes_made_differ_are_said_to(first, tmp_path):
    def text(program):
        return program.text.replace("aten.relu", "aten.gelu")

    given = of_program(text=text, fingerprint=lambda program: "another")
    answer = why_runs_differ(first, changed(first, tmp_path / "pass", given))
    assert answer.programs[0].by == "passes"
    assert "Both were captured alike; passes of their lowerings made them differ." in str(answer)


def test_who_computes_an_operator_is_compared(first, tmp_path):
    def choices(program):
        return tuple(
            dataclasses.replace(each, by="our kernel")
            if each.operator == "aten.relu.default"
            else each
            for each in program.choices
        )

    (kernel,) = why_runs_differ(
        first, changed(first, tmp_path / "kernel", of_program(choices=choices))
    ).kernels
    assert kernel.what == "aten.relu.default in forward of step"
    assert (kernel.first, kernel.second) == ("torch", "our kernel")


def test_versions_and_threads_are_compared(first, tmp_path):
    def elsewhere(run):
        machine = dataclasses.replace(run.machine, threads=64, torch="1.0", python="2.7")
        return dataclasses.replace(run, machine=machine)

    answer = why_runs_differ(first, changed(first, tmp_path / "elsewhere", elsewhere))
    assert {each.what for each in answer.machine} == {"threads", "torch", "python"}
    assert answer.status == 1


def test_a_run_that_was_not_built_is_compared_by_what_there_is(first, tmp_path):
    def before(run):
        return dataclasses.replace(run, build=None, programs=())

    other = changed(first, tmp_path / "before", before)
    (other / "journal.jsonl").unlink()
    answer = why_runs_differ(first, other)
    assert (answer.only[0].first, answer.only[0].second) == ("step", "none")
    assert "Losses: nothing to compare, no update has a loss in both records." in str(answer)
    assert "has no journal.jsonl" in str(answer)


def test_losses_between_which_records_have_none_may_have_parted_before(first, make, tmp_path):
    other = changed(make("rate", rate=0.2), tmp_path / "together", lambda run: run)
    lines = (other / "journal.jsonl").read_text().splitlines()
    calls = [index for index, line in enumerate(lines) if '"e": "calls"' in line]
    second, third = (json.loads(lines[index]) for index in calls[1:3])
    lines[calls[1]] = json.dumps(third | {"first": second["first"], "count": 2})
    del lines[calls[2]]
    (other / "journal.jsonl").write_text("\n".join([*lines, ""]))
    said = str(why_runs_differ(first, other))
    assert "they diverge at update 3: " in said
    assert "Those up to update 1 are the same bit for bit." in said
    assert "From there 3 of 4 differ" in said


def test_json_has_everything(first, make, capsys):
    other = make("tanh", activation="tanh")
    assert main(["diff", str(first / "run.json"), str(other), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["programs"][0]["operations"][1]["line"] == line_of("torch.tanh(x)")
    assert data["losses"]["first"]["update"] == 1


def newer(first, tmp_path):
    copy = tmp_path / "newer"
    shutil.copytree(first, copy)
    data = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(data | {"schema": 99, "abele": "9.0"}))
    return str(copy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN", "EMPTY"], "There is no run in .*empty"),
        (["PARENT", "RUN"], "There are runs in .*first"),
        (["RUN", "NEWER"], "has schema 99.*Read it with the version that wrote it: 9.0"),
        (["RUN", "RUN"], "are the same run. Give two runs"),
        (["RUN", "RUN/run.json"], "are the same run. Give two runs"),
        (["train.py", "RUN"], "train.py is a program, not a run. Compare two ways to run it"),
        (["RUN", "train.py"], "train.py is a program, not a run"),
        (["RUN", "reference", "cpu"], "first is no program. Runs are compared by themselves"),
        (["RUN", "EMPTY", "--", "--epochs", "1"], "Two runs take no arguments, but '--epochs 1'"),
    ],
)
def test_what_cannot_be_said_exits_with_2(first, tmp_path, arguments, message, capsys):
    (tmp_path / "empty").mkdir()
    places = {
        "RUN": str(first),
        "RUN/run.json": str(first / "run.json"),
        "EMPTY": str(tmp_path / "empty"),
        "PARENT": str(first.parent),
        "NEWER": newer(first, tmp_path),
    }
    assert main(["diff", *(places.get(each, each) for each in arguments)]) == 2
    assert re.search(message, capsys.readouterr().err)
