"""Instances that disagree, stop or die are told apart by name, and nobody waits for ever."""

import json
import re
import socket
import time
from pathlib import Path

import pytest

import popdist
import poptorch
from abele import collectives
from helpers import instances, instances_at_fault
from helpers.wrapping import scorer

EPOCHS = (
    "epoch of the data loader (every process has to begin as many iterators) is {} on process 0 "
    "and {} on process 1"
)
PROGRAM = Path(instances_at_fault.__file__)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What both instances were told at every mistake."""
    folder = tmp_path_factory.mktemp("talk")
    instances.run(PROGRAM, [str(folder), "talk"], 2)
    return [json.loads((folder / f"{index}.json").read_text()) for index in range(2)]


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("options", "gradient_accumulation is 1 on process 0 and 2 on process 1"),
        ("program", "program 'accumulate' is "),
        ("batches", "batches per epoch is 4 on process 0 and 8 on process 1"),
        ("nameless batches", "batches per epoch is 4 on process 0 and 8 on process 1"),
        ("peeks, Sync", EPOCHS.format(1, 0)),
        ("peeks, Async", EPOCHS.format(1, 0)),
        ("peeks, accessor", EPOCHS.format(1, 0)),
        ("peeks, workers", EPOCHS.format(1, 0)),
        ("reads all", EPOCHS.format(3, 2)),
        ("peeks in an epoch", EPOCHS.format(1, 0)),
        ("learning rate", "group0.lr is 0.1 on process 0 and 0.2 on process 1"),
        ("weights", "weights that were written is "),
        ("restored", "group0.lr is 0.1 on process 0 and 1.1 on process 1"),
    ],
)
def test_who_disagrees_about_what_is_named_in_all_instances(told, mistake, words):
    for one in told:
        assert words in one[mistake]
        assert "InstanceError" in one[mistake]


def test_what_is_mended_goes_on(told):
    for one in told:
        assert one["learning rate repaired"] == "nothing"
        assert one["weights as they were"] == "nothing"


@pytest.mark.parametrize(
    "what",
    [
        *(f"peeked both, {name}" for name in ("Sync", "Async", "accessor", "workers")),
        *("first epochs", "validates alone", "begins again"),
    ],
)
def test_instances_whose_epochs_are_the_same_go_on(told, what):
    assert [one[what] for one in told] == ["nothing", "nothing"]


def test_counts_that_are_put_back_are_those_of_all_and_stay(told):
    for one in told:
        assert (one["counted"], one["restored counters"]) == ("True", "[]")


def test_different_weights_become_those_of_instance_0_and_it_says_so(told):
    assert "2 of 2 tensors: fc.weight, fc.bias). All take those of process 0" in told[0]["start"]
    assert told[1]["start"] == ""
    assert [one["started with those of 0"] for one in told] == ["True", "True"]


def test_an_update_that_one_instance_cannot_make_is_made_by_none(told):
    assert "given up" in told[0]["stopped"]
    assert "process 1: TrappedError: Floating-point exception in aten" in told[0]["stopped"]
    assert told[1]["stopped"].startswith("RecoverableError: In ")
    for one in told:
        assert one["stopped left the weights"] == "True"
        assert one["stopped goes on"] == "nothing"
    assert told[0]["stopped weights"] == told[1]["stopped weights"]


def test_an_instance_with_fewer_batches_is_named(told):
    assert [told[0][f"end {step}"] for step in range(2)] == ["nothing", "nothing"]
    assert "but process 1 has ended after " in told[0]["end 2"]


@pytest.mark.parametrize(
    ("which", "count"),
    [
        (1, 2),
        pytest.param(1, 3, marks=pytest.mark.long),
        pytest.param(0, 2, marks=pytest.mark.long),  # it keeps the store
    ],
)
def test_an_instance_that_is_killed_ends_the_others(tmp_path, which, count):
    with instances.started(PROGRAM, [str(tmp_path), "die", str(which)], count) as running:
        running[which].wait(timeout=120)
        killed = time.monotonic()
        ended = instances.results(running, within_s=60)
        took = time.monotonic() - killed
    assert ended.pop(which).status == -9
    for one in ended:
        assert one.status == 1
        assert f"process {which}" in one.err.splitlines()[-1] + one.err
        assert "InstanceError" in one.err
    assert took < 60


@pytest.mark.parametrize(
    ("late", "words"),
    [
        pytest.param(0, "waited 1 s for process 0, which does not answer", marks=pytest.mark.long),
        (1, r"process 1 did not come within \d+ s"),
    ],
)
def test_instances_that_start_further_apart_end_and_say_so(tmp_path, late, words):
    changed = {"ABELE_RANK_TIMEOUT": "1"}
    arguments = [str(tmp_path), "late", str(late)]
    with instances.started(PROGRAM, arguments, 2, changed=changed) as running:
        ended = instances.results(running, within_s=90)
    assert [one.status for one in ended] == [1, 1]
    assert re.search(words, ended[1 - late].err)
    assert re.search(rf"process {1 - late}\b.*(ended|come|answer)", ended[late].err)


# -- meeting -------------------------------------------------------------------------------


@pytest.fixture
def meeting(monkeypatch, poprun):
    """The environment of one of two instances; the other one never comes."""

    def place(index, **changed):
        poprun(index=index, instances=2, local=1)
        told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(instances.free_port())}
        for name, value in (told | {"ABELE_RANK_TIMEOUT": "2"} | changed).items():
            monkeypatch.setenv(name, value)

    yield place
    collectives.disconnect()


@pytest.mark.parametrize(
    ("index", "words"),
    [(0, "cannot open {}.*port of process 0"), (1, "reaches {}.*another program has that port")],
)
def test_a_port_that_is_taken_is_named(meeting, index, words):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        meeting(index, MASTER_PORT=str(port), ABELE_RANK_TIMEOUT="1")
        with pytest.raises(popdist.Error, match=words.format(rf"127\.0\.0\.1:{port}")):
            popdist.init()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"MASTER_PORT": "many"}, "MASTER_PORT='many' should be an integer"),
        ({"RANK": "1"}, "RANK=1, but the options say 0"),
        ({"WORLD_SIZE": "3"}, "WORLD_SIZE=3, but the options say 2"),
        ({"ABELE_RANK_TIMEOUT": "soon"}, "ABELE_RANK_TIMEOUT='soon' should be a number of sec"),
        ({"MASTER_ADDR": ""}, "does not know where to meet.*poprun --num-instances 2"),
    ],
)
def test_an_environment_that_says_no_meeting_point(meeting, changed, words):
    meeting(0, **changed)
    with pytest.raises(popdist.Error, match=words):
        popdist.init()


def test_inference_and_compiling_offline_need_nobody(meeting):
    meeting(0, MASTER_ADDR="")
    poptorch.inferenceModel(scorer(), poptorch.Options())
    offline = poptorch.Options().connectionType(poptorch.ConnectionType.Never)
    poptorch.trainingModel(scorer(), offline)
