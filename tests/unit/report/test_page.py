"""The page of a run: what it says, that it needs nothing else, and that text stays text."""

import dataclasses
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch

import poptorch
from abele.compilation.executable import Running
from abele.compilation.start import Start
from abele.report import read_journal, read_run
from abele.report.journal import Journal, JournalWriter, window_of
from abele.report.optimizer import Optimizer
from abele.report.page import page
from abele.report.record import Loop, Option, Pipeline, Task
from abele.report.status import steady
from helpers.reported import journal_of, run_before, run_of

VOID = {"meta", "br", "rect", "path", "line", "circle"}
END = ("end", "finished")
#: As torch hands over what a worker of a loader has raised.
WORKER = """Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/lib/torch/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/a.py", line 20, in __getitem__
    raise ValueError("event 7 has no label")
ValueError: event 7 has no label
"""


class Checked(HTMLParser):
    """Reads a page; fails where elements are not nested, or something would be fetched or run."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.names = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        if tag not in VOID or not self.get_starttag_text().endswith("/>"):
            self.open.append(tag)
        for name, value in attrs:
            assert name not in ("src", "srcset", "action", "data")
            assert not name.startswith("on")
            if name == "href":
                assert value.startswith("#")

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        if tag in ("meta",):
            return
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return re.sub(r"\s+", " ", " ".join(self.text))


def read(run, journal, **how):
    text = page(run, journal, **how)
    assert len(text) < 1_000_000
    assert "url(" not in text
    assert "@import" not in text
    checked = Checked(text)
    assert not {"script", "link", "iframe", "img", "object", "form"} & set(checked.names)
    return checked.words


@pytest.fixture(scope="module")
def introduction():
    return run_of("introduction")


def test_a_page_says_how_it_went_and_what_ran(introduction):
    words = read(introduction, journal_of(END))
    assert "Training on reference finished : 20 calls, 23.0 ms each (median)." in words
    assert "The loss went from 2 to 1.05." in words
    assert introduction.build.executable[:16] in words
    assert "aten.convolution_backward.default" in words
    assert "models.py:" in words
    for title in ("Memory over the program", "Operators", "Modules", "Loss", "Programs"):
        assert title in words


@pytest.mark.long
def test_the_page_of_a_large_network_stays_small(tmp_path, monkeypatch):
    pytest.importorskip("omegaconf", reason="needs abele[cosmictagger]")
    from cosmictagger import models
    from cosmictagger.config.network import named
    from cosmictagger.measures import Loss
    from cosmictagger.models import LossInForward

    monkeypatch.setenv("ABELE_TARGET", "null")
    network = models.build(named("a21"), (320, 512))
    module = LossInForward(
        network, Loss("none"), mark=lambda loss: poptorch.identity_loss(loss, "mean")
    )
    opts = poptorch.Options().showCompilationProgressBar(False).modelName("a21")
    opts.enableProfiling(str(tmp_path))
    adam = poptorch.optim.Adam(module.parameters(), lr=1e-3)
    wrapped = poptorch.trainingModel(module, opts, adam)
    wrapped.compile(torch.zeros(1, 3, 320, 512), torch.zeros(1, 3, 320, 512, dtype=torch.int64))
    size = (tmp_path / "a21" / "report.html").stat().st_size
    assert 100_000 < size < 5 * 2**20


def test_every_operator_says_who_computes_it_and_why(introduction):
    (program,) = introduction.programs
    declined = {"emitted": "9 of 10 operators would be called from Python"}
    run = dataclasses.replace(
        introduction, programs=(dataclasses.replace(program, declined=declined),)
    )
    words = read(run, journal_of(END))
    assert "torch torch's kernel" in words
    assert "no code nothing is computed: a view" in words
    assert "By rule not emitted: 9 of 10 operators would be called from Python." in words
    older = dataclasses.replace(run, programs=(dataclasses.replace(program, choices=()),))
    assert "ours do not compute it" not in read(older, journal_of(END))


def test_a_page_before_anything_was_built_has_no_empty_sections():
    words = read(run_before(), Journal(), alive=True)
    assert "is running" in words
    assert "Memory over the program" not in words


AGAIN = """
import sys
from pathlib import Path
from abele.compilation.executable import Running
from abele.compilation.start import Start
from abele.report import read_journal, read_run
from abele.report.page import page
folder = Path(sys.argv[1])
sys.stdout.write(page(read_run(folder), read_journal(folder)))
"""


def test_a_page_is_a_function_of_its_files(introduction, tmp_path):
    introduction.write(tmp_path)
    writer = JournalWriter(tmp_path)
    writer.calls(window_of(0.5, (0.0, 0.001, 0.02, 0.001), 1.5))
    writer.add("end", 1.0, "finished")
    writer.close()
    command = [sys.executable, "-c", AGAIN, str(tmp_path)]
    # Another seed than in this process.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    told = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": seed}
    other = subprocess.run(command, env={**os.environ, **told}, check=True, stdout=-1).stdout
    assert other.decode() == page(read_run(tmp_path), read_journal(tmp_path))


def test_sections_come_from_the_verdict_to_the_programs():
    """What somebody wants to know first comes first."""
    assert sections_of_a_full_page() == [
        *("proof", "memory", "modules", "operators", "lowerings", "time"),
        *("pipeline", "optimizer", "options", "loss", "programs"),
    ]


def sections_of_a_full_page():
    tasks = (Task(stage=0, micro_batch=0, backward=False, begin=0.0, end=1.0),)
    run = run_of("introduction")
    run = dataclasses.replace(
        run,
        optimizer=Optimizer(name="torch.optim.SGD", groups=()),
        pipeline=Pipeline(stages=("first", "last"), tasks=tasks, bubble=0.5, ideal=0.5),
        configuration={**run.configuration, "processes": 2},
        exchanged={"calls": 20.0, "bytes": 1e6, "seconds": 0.3},
        options=(Option(name="Options.replicationFactor", value="2", status="honoured", note=""),),
    )
    text = page(run, journal_of(END))
    assert text.index('class="lead"') < text.index("<section")
    assert "20, each of 48.8 KiB in 15.0 ms, waiting included" in text
    names = re.findall(r'<section id="(\w+)"', text)
    assert re.findall(r'href="#(\w+)"', text.split("</nav>")[0]) == names
    return names


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "{{ name }}", "__DATA__", '"><b>'])
def test_a_name_that_looks_like_markup_or_a_placeholder_is_text(name, introduction):
    (program,) = introduction.programs
    operators = [dataclasses.replace(each, module=f"{name}/x") for each in program.operators]
    largest = [dataclasses.replace(each, line=name, module=name) for each in program.memory.largest]
    changed = dataclasses.replace(
        program,
        name=name,
        reason=name,
        text=name,
        operators=tuple(operators),
        memory=dataclasses.replace(program.memory, largest=tuple(largest)),
    )
    run = dataclasses.replace(introduction, name=name, notes=(name,), programs=(changed,))
    words = read(run, journal_of(("error", name), ("note", name), ("end", "failed")))
    assert words.count(name) > 20


def test_a_loss_that_is_not_finite_is_in_the_first_sentence(introduction):
    losses = [1.0, 0.5, float("nan"), float("nan")]
    words = read(introduction, journal_of(END, losses=losses))
    assert "The loss was not finite in 2 calls, first in call 3." in words


@pytest.mark.parametrize(
    ("moments", "alive", "said"),
    [
        ([("stage", "compile step")], False, "was killed"),
        ([("stage", "compile step")], False, "Its last stage was “compile step”."),
        ([("end", "ended by SIGTERM")], False, "It was ended by SIGTERM"),
        ([("error", "no space"), ("end", "failed")], False, "failed"),
        ([("error", "[Errno 28] No space left on device"), ("end", "failed")], None, "is full"),
        ([("error", "can't allocate memory: you"), ("end", "failed")], None, "Out of memory"),
        ([("error", "[Errno 12] Cannot allocate memory"), ("end", "failed")], None, "Out of mem"),
        ([("error", "'a_b': x is 3. Or so."), ("end", "failed")], None, "error in call 3: x is 3."),
        ([("error", WORKER), ("end", "failed")], None, "“ValueError: event 7 has no label”, in a"),
        ([("end", "interrupted")], None, "was interrupted"),
        ([("end", "ended with status 3")], None, "It ended with status 3."),
        ([("end", "ended with status 1: no data. Get it.\n")], None, "with status 1: no data."),
        ([("end", "ended: the wrapper was destroyed")], None, "because the wrapper was destroyed"),
        ([], True, "It was running when this was written, 1.9 s after it began; abele report says"),
    ],
)
def test_every_ending_is_said(moments, alive, said, introduction):
    assert said in read(introduction, journal_of(*moments), alive=alive)


def test_an_error_before_a_signal_is_why_it_ended(introduction):
    moments = ("error", "died"), ("end", "ended by SIGTERM")
    said = "failed . It ended with an error in call 3: died. Then it was ended by SIGTERM."
    assert said in read(introduction, Journal(moments=journal_of(*moments).moments))
    # The calls that follow here say that the run went on after that error.
    assert "asked it to stop" in read(introduction, journal_of(*moments))


def test_a_fallback_is_in_the_first_sentences(introduction):
    build = dataclasses.replace(introduction.build, fallback="no compiler. Install one.")
    words = read(dataclasses.replace(introduction, build=build), journal_of(END))
    said = "It ran on the slower target reference: no compiler."
    assert words.index(said) < words.index("What ran where")
    assert "no compiler. Install one." in words


def test_what_was_awaited_is_not_announced_after_the_end(introduction):
    running = Running(start=Start.TIERED, interpreted=True).sentence()
    build = dataclasses.replace(introduction.build, running=running)
    run = dataclasses.replace(introduction, build=build)
    assert f"what runs {running}" in read(run, journal_of())
    ended = "what ran programs are interpreted; compiled ones were not ready when the run ended"
    assert ended in read(run, journal_of(END))


def test_an_error_that_is_noted_several_times_has_one_box(introduction):
    cause, error = (
        "no rule for ctc",
        "'poptorch_py_error': no\nCaused by CompilerError: no rule for ctc",
    )
    moments = ("error", "another"), ("error", cause), ("error", error), ("end", "failed")
    text = page(introduction, journal_of(*moments))
    boxes = re.findall(r'<div class="trouble".*?</div>', text, re.DOTALL)
    assert len(boxes) == 2
    assert "Caused by CompilerError" in boxes[0]  # what ended the run comes first
    assert "another" in boxes[1]
    assert "The compiler failed, in call 3." in text


def test_steps_outside_of_the_programs_are_counted(introduction):
    proof = "training steps by plain PyTorch {}"
    run = dataclasses.replace(introduction, host_steps=0)
    assert proof.format("none: all ran in these programs") in read(run, journal_of(END))
    said = "3 training steps of Net ran on the host, not on target cpu."
    words = read(dataclasses.replace(run, host_steps=3, host_said=said), journal_of(END))
    assert proof.format(3) in words
    assert words.index(said) < words.index("What ran where")
    assert "by plain PyTorch" not in read(introduction, journal_of(END))  # nobody counted


def test_the_loader_is_a_part_of_the_time_where_one_was_seen(introduction):
    text = read(introduction, journal_of(END))
    assert "loading data, and what else the program does" in text
    windows = tuple(dataclasses.replace(e, loading=0.004) for e in journal_of(END).windows)
    loop = Loop(batches=200, steps=1, seconds=2.0, waiting=0.5)
    text = read(dataclasses.replace(introduction, loop=loop), Journal(windows=windows))
    assert "waiting for a batch of the loader 4.00 ms" in text
    assert "what else the program does between calls 6.00 ms" in text
    assert (
        "The loop was compute-bound: 100 steps/s, of which waiting for batches took 25%; with free "
        "input 133 steps/s." in text
    )


def test_where_operators_were_not_timed_the_page_says_how_they_can_be(introduction):
    said = "How long each takes was not measured; report(path, measure=True) does so."
    assert said in read(introduction, journal_of(END))
    assert said not in read(introduction, journal_of())  # it goes on, and may be timed at its end
    (program,) = introduction.programs
    untimed = (dataclasses.replace(program, untimed="it prints"),)
    assert said not in read(dataclasses.replace(introduction, programs=untimed), journal_of(END))


def test_what_is_left_to_a_compiler_is_a_part_where_one_ran(introduction):
    assert "left to a process that compiles" not in read(introduction, journal_of(END))
    windows = tuple(
        dataclasses.replace(e, inputs=6e-3, compiling=4e-3) for e in journal_of().windows
    )
    text = read(introduction, Journal(windows=windows))
    assert "left to a process that compiles, and comparing what it has made 4.00 ms" in text
    assert "inputs: from the call to its first micro-step 2.00 ms" in text


def test_calls_that_scatter_are_said_in_the_first_sentence(introduction):
    assert "some took far longer" not in read(introduction, journal_of(END))
    windows = list(journal_of(END).windows)
    windows[15] = window_of(1.5, (0.0, 0.0, 3.0, 0.0), first=15)
    text = read(introduction, Journal(windows=tuple(windows)))
    assert "23.0 ms each (median; 188 ms on average, some took far longer)" in text


def test_the_parts_of_a_call_add_up_to_it():
    later = steady(journal_of(END))
    parts = later.waited + later.inputs + later.computed + later.outputs
    assert parts == pytest.approx(later.whole)
    assert later.quarters[2] + later.waited == pytest.approx(later.whole)
