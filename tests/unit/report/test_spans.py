"""Timeline for other viewers: complete, and as its format says."""

import dataclasses
import json

import pytest

from abele.report import files
from abele.report.files import lines, write
from abele.report.journal import Journal, Moment, window_of
from abele.report.record import Kernel, Pipeline, Task, Timing
from helpers.reported import journal_of, run_before, run_of


def kernel(index, name, module, began, seconds):
    return Kernel(
        what="torch",
        operators=((name, 1.0),),
        phase="forward",
        module=module,
        line=f"net.py:{index} in forward",
        began=began,
        seconds=seconds,
        operations=10,
        bytes=20,
        least=seconds / 2,
    )


@pytest.fixture(scope="module")
def run():
    run = run_of("introduction")
    (program,) = run.programs
    kernels = (kernel(1, "aten.mm.default", "net/fc", 0.1, 0.2), kernel(2, "a", "", 0.35, 0.5))
    timing = Timing(runs=3, seconds=0.9, clocked=1.0, clocks=0.01, kernels=kernels)
    tasks = (
        Task(stage=0, micro_batch=0, backward=False, begin=0.0, end=0.5),
        Task(stage=1, micro_batch=0, backward=True, begin=0.5, end=1.0),
    )
    pipeline = Pipeline(stages=("first", "<second>"), tasks=tasks, bubble=0.5, ideal=0.5)
    timed = dataclasses.replace(program, timing=timing)
    return dataclasses.replace(run, programs=(timed,), pipeline=pipeline)


JOURNAL = journal_of(("stage", "capture"), ("stage", "passes"), ("stage", "calls"), ("note", "x"))


def test_every_part_of_the_run_has_a_line(run):
    by_name = {name: spans for (_, name), spans in lines(run, JOURNAL).items()}
    assert list(by_name) == [
        *("building", "calls", "kernels of step", "stage 0: first", "stage 1: <second>"),
    ]
    assert {span.name for span in by_name["calls"]} >= {
        "call 1",
        "computed",
        "before the call",
    }
    assert {span.kind for span in by_name["building"]} == {"stage", "pass"}
    assert [span.name for span in by_name["kernels of step"]] == [
        *("step", "aten.mm.default", "a"),
    ]


def follow_each_other(listed):
    for spans in listed.values():
        open_ = []
        for before, span in zip((None, *spans), spans, strict=False):
            assert span.end >= span.begin
            assert before is None or before.begin <= span.begin
            while open_ and open_[-1].end <= span.begin:
                open_.pop()
            assert not open_ or span.end <= open_[-1].end + 1e-12
            open_.append(span)


def test_spans_follow_each_other_or_are_inside(run):
    follow_each_other(lines(run, JOURNAL))


@pytest.mark.parametrize("built", [False, True], ids=["before building", "after"])
def test_the_trace_is_as_the_format_says(built, run):
    trace_file = files.trace_of_run(run if built else run_before(), JOURNAL if built else Journal())
    assert json.loads(json.dumps(trace_file, allow_nan=False)) == trace_file
    assert trace_file["displayTimeUnit"] in ("ms", "ns")
    named = {(e["pid"], e["tid"]) for e in trace_file["traceEvents"] if e["name"] == "thread_name"}
    for event in trace_file["traceEvents"]:
        assert event["ph"] in ("X", "M", "i")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= 0
            assert (event["pid"], event["tid"]) in named
    assert len(named) == (5 if built else 0)


def test_the_loader_has_bars_of_its_own_right_before_the_calls():
    windows = (window_of(0, (0, 0, 1, 0)), window_of(5, (3, 0, 1, 0), first=1, loading=2))
    (spans,) = lines(run_before(), Journal(windows=windows)).values()
    waits = [(s.name, s.begin, s.end) for s in spans if s.kind in ("wait", "load")]
    assert waits == [("before the call", 2, 3), ("waiting for a batch", 3, 5)]


def test_calls_that_overlap_in_rounding_do_not_overlap_there(run):
    windows = [window_of(i * 0.1, (0.2, 0.01, 0.1, 0.01), 1.0, first=i) for i in range(5)]
    told = Journal(windows=tuple(windows), moments=(Moment(at=0.0, kind="stage", what="x"),))
    follow_each_other(lines(run, told))


def test_the_files_are_written_beside_the_page(run, tmp_path):
    write(tmp_path, run, JOURNAL)
    assert {each.name for each in tmp_path.iterdir()} == {"report.html", "trace.json"}
    assert "Pipeline" in (tmp_path / "report.html").read_text()
