"""Endings that need more than a program of its own: compilers, caches, pipelines, a disk."""

import os
import subprocess
import sys

import pytest
import torch

import poptorch
from abele import get_target
from abele.report import read_journal, read_run
from helpers.reported import PROGRAM, ran, words
from helpers.wrapping import rows, scorer, trainer

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


def test_a_pipeline_has_its_stages_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv("ABELE_PIPELINE", "workers")  # also on one core

    class Stages(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)

        def forward(self, x, y):
            with poptorch.Block("first", ipu_id=0):
                x = self.first(x)
            with poptorch.Block("second", ipu_id=1):
                return torch.nn.functional.mse_loss(self.second(x), y)

    stages = [poptorch.Stage("first").ipu(0), poptorch.Stage("second").ipu(1)]
    opts = poptorch.Options().showCompilationProgressBar(False)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    opts.Training.gradientAccumulation(4)
    opts.enableProfiling(str(tmp_path)).modelName("net")
    model = Stages()
    wrapped = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        wrapped(torch.ones(8, 4), torch.ones(8, 3))
    wrapped.destroy()
    shown = read_run(tmp_path / "net").pipeline
    assert len(shown.stages) == 2
    assert len(shown.tasks) == 2 * 2 * 4
    assert {each.stage for each in shown.tasks} == {0, 1}
    assert all(0 <= each.begin <= each.end for each in shown.tasks)
    text = words(tmp_path / "net" / "report.html")
    assert "In the latest call 4 micro-batches went through 2 stages in" in text
    assert "stage 1: backward of micro-batch 3" in (tmp_path / "net" / "report.html").read_text()


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
