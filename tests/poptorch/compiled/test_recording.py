"""Runs that are recorded: what a wrapper writes while it runs, and how it says what went wrong."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import poptorch
from abele import get_target
from abele.__main__ import main
from abele.report import read_journal, read_run
from abele.report.run_differences import differences
from helpers.reported import PROGRAM, ran, words
from helpers.wrapping import inference, options, rows, scorer, trainer
from poptorch._state.module_weights import shared_by


def recorded(folder, name="training"):
    return read_run(folder / name), read_journal(folder / name)


def test_a_run_is_recorded_with_its_calls_and_losses(tmp_path):
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path), modelName="net")
    losses = [float(wrapped(*rows(4))[0]) for _ in range(5)]
    run, journal = recorded(tmp_path, "net")
    assert run.build.executable == wrapped.executable_hash
    assert [each.loss for each in journal.windows] == losses
    assert journal.of_kind("stage")[0].what == "capture"
    assert {each.name for each in run.options} >= {"Options.modelName"}
    assert journal.end is None
    wrapped.destroy()
    assert "finished" in words(tmp_path / "net" / "report.html")
    assert read_journal(tmp_path / "net").end.what == "ended: the wrapper was destroyed"


def test_backward_has_modules_and_lines_too(tmp_path):
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path))
    wrapped.compile(*rows(4))
    (program,) = recorded(tmp_path)[0].programs
    assert "fc" in {each.module for each in program.operators if each.phase == "backward"}
    lines = {each.line for each in program.memory.largest}
    assert any(line.startswith("wrapping.py:") for line in lines)


def test_a_run_without_a_name_has_that_of_the_users_class(tmp_path):
    model = scorer()
    for index in range(2):
        wrapped = trainer(model, enableProfiling=str(tmp_path / str(index)))
        wrapped.compile(*rows(4))
        assert recorded(tmp_path / str(index))[0].name == "Scorer"
        wrapped.destroy()


def test_recording_changes_no_bit(tmp_path):
    plain, watched = (
        trainer(scorer(), gradientAccumulation=2, **more)
        for more in ({}, {"enableProfiling": str(tmp_path)})
    )
    for _ in range(3):
        expected, actual = plain(*rows(8)), watched(*rows(8))
        assert all(map(torch.equal, expected, actual))
    assert plain.executable_hash == watched.executable_hash


def test_a_loss_of_several_micro_batches_is_their_mean(tmp_path):
    opts = {"gradientAccumulation": 2, "outputMode": poptorch.OutputMode.All}
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path), **opts)
    loss, _ = wrapped(*rows(8))
    assert recorded(tmp_path)[1].windows[0].loss == pytest.approx(float(loss.mean()))


def test_inference_has_neither_loss_nor_optimizer(tmp_path):
    wrapped = inference(scorer(), enableProfiling=str(tmp_path), modelName="net")
    wrapped(*rows(4))
    run, journal = recorded(tmp_path, "net")
    assert not run.training
    assert journal.windows[0].loss is None
    assert run.optimizer is None
    assert 'id="optimizer"' not in (tmp_path / "net" / "report.html").read_text()


def test_a_report_can_be_written_at_any_time(tmp_path):
    wrapped = trainer(scorer())
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        wrapped.report(tmp_path / "page.html")
    wrapped(*rows(4))
    wrapped.report(tmp_path / "page.html")
    assert "Training on reference is running : 1 call" in words(tmp_path / "page.html")
    wrapped.report(tmp_path / "folder")
    assert read_run(tmp_path / "folder").build.executable == wrapped.executable_hash
    assert (tmp_path / "folder" / "report.html").exists()


def test_two_identical_runs_differ_in_nothing(tmp_path):
    for name in ("one", "two"):
        wrapped = trainer(scorer(), enableProfiling=str(tmp_path / name))
        for _ in range(40):
            wrapped(*rows(4))
        wrapped.destroy()
    files = [recorded(tmp_path / name) for name in ("one", "two")]
    # The machine may really have been slower meanwhile; nothing else may differ.
    assert [each for each in differences(*files) if "time" not in each.kind] == []
    assert all(each.timing is not None for run, _ in files for each in run.programs)


def test_times_of_operators_are_measured_on_request_and_are_none_of_a_call(tmp_path):
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path / "profile"))
    plain = trainer(scorer())
    for _ in range(2):
        assert all(map(torch.equal, wrapped(*rows(4)), plain(*rows(4))))
        wrapped.report(tmp_path / "page", measure=True)
    (program,) = read_run(tmp_path / "page").programs
    assert program.timing.attributed > 0
    assert "between them, " in words(tmp_path / "page" / "report.html")
    journal = read_journal(tmp_path / "page")
    assert journal.calls == 2
    # It took a second or two between the calls, in which nothing waited for data.
    assert journal.windows[1].waited < 0.5


def test_each_instance_has_a_folder_of_its_own(tmp_path):
    opts = options(enableProfiling=str(tmp_path))
    opts.Distributed.configureProcessId(1, 2)
    wrapped = poptorch.inferenceModel(torch.nn.Linear(2, 2), opts)
    wrapped(torch.ones(1, 2))
    assert (tmp_path / "inference" / "instance_1" / "run.json").exists()


LOOP = (
    PROGRAM.replace("(False)", "(True)")
    + """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        time.sleep(0.004 if sys.argv[2] == "input-bound" else 0.0001)
        return torch.ones(4), torch.ones(3)
for x, y in poptorch.DataLoader(opts, Slow(), batch_size=2):
    wrapped(x, y)
    time.sleep(0.002 if sys.argv[2] == "input-bound" else 0.011)
"""
)


@pytest.mark.parametrize("bound", ["input-bound", "compute-bound"])
def test_the_page_says_what_bounded_the_loop_as_the_end_of_the_process_does(bound, tmp_path):
    ended = ran(LOOP, tmp_path, bound)
    assert ended.returncode == 0, ended.stderr
    (line,) = [each for each in ended.stderr.splitlines() if "steps/s" in each]
    assert bound in line
    text = words(tmp_path / "net" / "report.html")
    assert f"The loop was {line.removeprefix('abele: ')}." in text
    run, journal = recorded(tmp_path, "net")
    # What calls were told of their batches is what the loop was told; the first few do not count.
    loading = sum(each.loading for each in journal.windows[2:])
    assert loading == pytest.approx(run.loop.waiting, rel=0.05)
    assert loading <= sum(each.waited for each in journal.windows[2:])


# -- what goes wrong ---------------------------------------------------------------------------


def page_after(folder, error, call):
    with pytest.raises(error):
        call()
    return words(folder / "training" / "report.html")


def test_an_error_in_forward_is_on_the_page(tmp_path):
    class Wrong(torch.nn.Linear):
        def forward(self, x):
            raise KeyError("no such layer")

    wrapped = trainer(Wrong(2, 2), enableProfiling=str(tmp_path))
    text = page_after(tmp_path, KeyError, lambda: wrapped(torch.ones(1, 2)))
    assert "KeyError in compiling" in text
    assert "no such layer" in text


def test_an_error_of_a_call_is_on_the_page_and_the_run_goes_on(tmp_path):
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path), modelName="training")
    wrapped(*rows(4))
    session = wrapped._executable.session

    def no_memory(*args):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried too much")

    run, session.runner._programs = session.runner._programs, [no_memory]
    text = page_after(tmp_path, RuntimeError, lambda: wrapped(*rows(4)))
    assert "RuntimeError in call 2" in text
    assert "can't allocate memory" in text
    session.runner._programs = run
    wrapped(*rows(4))
    assert recorded(tmp_path)[1].calls == 2


CALLS = (
    PROGRAM
    + """
def batches():
    for index in range(5):
        yield torch.ones(2, 4), torch.ones(2, 3)
    LAST
for x, y in batches():
    wrapped(x, y)
"""
)


SHAPE = "yield torch.ones(3, 5), torch.ones(2, 3)"
KILL = "time.sleep(1.2); os.kill(os.getpid(), signal.SIGKILL)"
# The last line of a program, its status, and words of the page.
ENDINGS = {
    "end": ("pass", 0, ["Training on reference finished : 5 calls"]),
    "error": ("raise ValueError('file 7 is damaged')", 1, ["file 7 is damaged"]),
    "error without words": ("raise ValueError", 1, ["A ValueError was raised without a message"]),
    "Ctrl-C": (
        "raise KeyboardInterrupt", -signal.SIGINT,
        ["Training on reference was interrupted", "The program was interrupted: by Ctrl-C"]),
    "signal": (
        "os.kill(os.getpid(), signal.SIGTERM); time.sleep(9)", -15, ["It was ended by SIGTERM"]),
    # The program's line, not the one of the wrapper that refuses the batch.
    "refused batch": (SHAPE, 1, ["failed", "in <module>"]),
    "status": (
        "sys.exit(3)", 3, ["Training on reference failed : 5 calls", "It ended with status 3."]),
    "killed": (KILL, -signal.SIGKILL, ["abele report says how it went on"]),
}  # fmt: skip


@pytest.mark.parametrize(("last", "status", "said"), ENDINGS.values(), ids=ENDINGS)
def test_a_program_leaves_a_page_that_says_how_it_ended(last, status, said, tmp_path):
    interpreter = sys.executable if status == 3 else None  # it ends with that status itself
    ended = ran(CALLS.replace("LAST", last), tmp_path, interpreter=interpreter)
    assert ended.returncode == status, ended.stderr[-2000:]
    text = words(tmp_path / "net" / "report.html")
    assert all(each in text for each in said)
    _, journal = recorded(tmp_path, "net")
    assert journal.calls == 5
    if last == KILL:
        assert journal.end is None
        assert main(["report", str(tmp_path / "net")]) == 0
        text = words(tmp_path / "net" / "report.html")
        assert "Training on reference was killed : 5 calls" in text


UNCALLED = (
    PROGRAM
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 4), torch.ones(2, 3)).backward()
    optimizer.step()
LAST
"""
)


@pytest.mark.parametrize(
    ("last", "said", "status"),
    [
        ("pass", "Training finished", 0),
        ("del wrapped", "Training finished . It ended because its wrapper was deleted", 0),
        ("raise ValueError('no such file')", "no such file", 1),
    ],
)
def test_a_model_that_nobody_calls_leaves_a_page_that_says_so(last, said, status, tmp_path):
    ended = ran(UNCALLED.replace("LAST", last), tmp_path)
    assert ended.returncode == status, ended.stderr[-2000:]
    assert main(["report", str(tmp_path / "net")]) == 0
    text = words(tmp_path / "net" / "report.html")
    assert said in text
    assert "Nothing was compiled, and nothing ran on a device" in text
    assert "training steps of Net ran on the host, not on the device" in text


def test_the_page_of_a_run_is_not_replaced_by_a_wrapper_that_nobody_calls(tmp_path):
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path), modelName="net")
    wrapped(*rows(4))
    wrapped.destroy()
    uncalled = trainer(scorer(), enableProfiling=str(tmp_path), modelName="net")
    del uncalled
    assert recorded(tmp_path, "net")[1].calls == 1
    estimated = trainer(scorer(), enableProfiling=str(tmp_path / "fit"))
    estimated.fit(*rows(4))
    del estimated
    assert not (tmp_path / "fit").exists()


def test_steps_on_the_host_are_in_the_proof(tmp_path):
    model = scorer()
    wrapped = trainer(model, enableProfiling=str(tmp_path), modelName="net")
    wrapped(*rows(4))
    wrapped.report(tmp_path / "page.html")
    assert "training steps by plain PyTorch none" in words(tmp_path / "page.html")
    model(*rows(4))[0].backward()
    shared_by(model).host_training.steps = 3
    wrapped.destroy()
    text = words(tmp_path / "net" / "report.html")
    assert "training steps by plain PyTorch 3" in text
    assert "3 training steps of Scorer ran on the host, not on target reference" in text


def test_a_run_has_the_values_of_its_optimizer_and_their_changes(tmp_path):
    model = scorer()
    groups = [{"params": [model.fc.weight]}, {"params": [model.fc.bias], "lr": 0.2}]
    optimizer = poptorch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9), max_grad_norm=2.0)
    opts = options(enableProfiling=str(tmp_path), modelName="net")
    wrapped = poptorch.trainingModel(model, opts, optimizer)
    optimizer.param_groups[1]["lr"] = 0.3
    wrapped.setOptimizer(optimizer)  # before the first call
    for rate in (0.1, 0.1, 0.05):
        optimizer.param_groups[0]["lr"] = rate
        wrapped.setOptimizer(optimizer)
        wrapped(*rows(4))
    known = read_run(tmp_path / "net").optimizer
    assert known.name == "poptorch.optim.AdamW"
    assert [each.parameters for each in known.groups] == [1, 1]
    assert [each.values["lr"] for each in known.groups] == [0.1, 0.3]
    assert known.groups[1].values["beta1"] == 0.8
    assert known.values == {"max_grad_norm": 2.0}
    assert [(each.calls, each.values) for each in known.changes] == [(2, {"group0.lr": 0.05})]
    wrapped.destroy()
    page = words(tmp_path / "net" / "report.html")
    assert "1 change, the last before call 3: group0.lr 0.05." in page
    assert "poptorch.optim.AdamW" in page


def test_values_that_are_loaded_between_calls_are_noted(tmp_path):
    wrapped = trainer(scorer(), enableProfiling=str(tmp_path), modelName="net")
    optimizer = wrapped._optimizer.in_use
    wrapped(*rows(4))
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.025
    optimizer.load_state_dict(state)
    wrapped(*rows(4))
    (change,) = read_run(tmp_path / "net").optimizer.changes
    assert (change.calls, change.values) == (1, {"group0.lr": 0.025})


# -- endings that need more than a program: compilers, caches, pipelines, a disk ---------------

BROKEN = """#!/bin/sh
case "$*" in *--version*) echo "g++ 99"; exit 0;; esac
echo "cosmic rays in the parser" >&2
exit 1
"""
ONE_CALL = PROGRAM + "wrapped(torch.ones(2, 4), torch.ones(2, 3))\n"


@pytest.mark.compiler
@pytest.mark.parametrize("forced", [True, False], ids=["forced", "with a fallback"])
def test_a_compiler_that_fails_is_on_the_page(forced, tmp_path):
    script = tmp_path / "g++"
    script.write_text(BROKEN)
    script.chmod(0o755)
    if not forced and get_target("cuda").unavailable() is None:
        pytest.skip("programs go to the GPU, which this compiler is not for")
    changed = {"CXX": str(script), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    changed |= {"ABELE_START": "wait", "ABELE_LOWERING": "emitted"}
    changed["ABELE_TARGET"] = "cpu" if forced else ""
    ended = ran("import warnings; warnings.simplefilter('ignore')" + ONE_CALL, tmp_path, **changed)
    text = words(tmp_path / "net" / "report.html")
    if forced:
        assert ended.returncode == 1, ended.stderr
        assert "The compiler failed, in" in text
        assert "The C++ compiler failed" in text or "the C++ compiler failed" in text
        assert read_journal(tmp_path / "net").end.what == "failed"
    else:
        assert ended.returncode == 0, ended.stderr
        assert "Training on reference finished : 1 call" in text
        assert "the C++ compiler failed" in text
        assert "the C++ compiler failed" in read_run(tmp_path / "net").build.fallback


@pytest.mark.compiler
def test_a_corrupt_cache_is_replaced_and_the_page_says_so(tmp_path, monkeypatch):
    if get_target("cpu").cannot_compile() is not None:
        pytest.skip("nothing is cached without a compiler")
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    cache = tmp_path / "cache"

    def run(name):
        opts = {"enableProfiling": str(tmp_path), "modelName": name}
        wrapped = trainer(scorer(), enableExecutableCaching=str(cache), **opts)
        loss = wrapped(*rows(4))[0]
        wrapped.destroy()
        return loss, words(tmp_path / name / "report.html")

    loss, text = run("first")
    assert "cache miss" in text
    (file,) = cache.glob("*.abele")
    data = bytearray(file.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    file.write_bytes(bytes(data))
    with pytest.warns(UserWarning, match="cannot be used|could not be used|damaged|corrupt"):
        again, text = run("second")
    assert torch.equal(loss, again)
    assert "cache miss" in text
    assert "could not be used" in text
    assert "finished" in text
    _, text = run("third")
    assert "cache hit" in text


FULL = (
    PROGRAM
    + """
call = lambda: wrapped(torch.ones(2, 4), torch.ones(2, 3))
for _ in range(20): call()
with open(sys.argv[1] + "/rest", "wb", buffering=0) as file:
    try:
        while True: file.write(bytes(4096))
    except OSError:
        pass
for _ in range(20): call()
time.sleep(1)
"""
)


def test_a_full_disk_is_on_the_page_and_the_run_goes_on(tmp_path):
    """On a real file system without room; the page takes that of files that can be made again."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(disk)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system of its own can be mounted: {done.stderr.strip()}")
    try:
        ended = ran(FULL, disk)
        text = words(disk / "net" / "report.html")
        journal = read_journal(disk / "net")
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "No space left on device" in ended.stderr
    assert 20 <= journal.calls <= 40
    assert journal.end is not None
    assert "Training on reference finished" in text
    assert "the journal ends here: No space left on device" in text
