"""Processes that share a cache folder, for ``test_cache``: ``cache_writers.py JOB FOLDER``."""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from abele import ExecutableCache, build
from abele.compilation import executable_file
from abele.step.config import StepConfig
from helpers.fakes import Keeping, KeptCode
from helpers.models import MODELS
from helpers.runs import captured

CONFIG = StepConfig(training=False)


def killed(programs, folder: Path) -> None:
    """Kill writers at random moments; print how many left half a file, and how many load.

    Ten are enough, unless the machine is so loaded that none of them had begun to write.
    """
    target = Keeping(padding=8_000_000)
    made, _ = build(programs, CONFIG, target=target)
    dice, halves = random.Random(0), set()
    for number in range(300):
        if number >= 10 and halves:
            break
        child = os.fork()
        if child == 0:
            while True:
                executable_file.save(made, folder / f"{number}.abele")
        time.sleep(dice.uniform(0.001, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        halves |= set(folder.glob("*.part"))  # the next writer deletes it
    paths = list(folder.glob("*.abele"))
    for path in paths:
        executable_file.load(path, made.programs, made.key_parts, target)
    print(len(halves), len(paths))


def together(programs, folder: Path) -> None:
    """Six processes build at the same moment; each prints whether it hit."""
    start = time.monotonic() + 0.3
    children = []
    for _ in range(6):
        child = os.fork()
        if child == 0:
            time.sleep(max(0.0, start - time.monotonic()))  # a loaded machine may be late
            cache = ExecutableCache(folder)
            _, record = build(programs, CONFIG, target=Keeping(10_000), cache=cache)
            os.write(1, f"{record.cache}\n".encode())
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    assert not any(statuses), statuses


def crashing(programs, folder: Path) -> None:
    """One process dies while it compiles; prints what another one found that waited for it."""
    reader, writer = os.pipe()

    class DyingCode(KeptCode):
        def compile(self, program):
            os.write(writer, b"x")
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)

    class Dying(Keeping):
        code = DyingCode

    child = os.fork()
    if child == 0:
        build(programs, CONFIG, target=Dying(10_000), cache=ExecutableCache(folder))
    os.read(reader, 1)
    _, record = build(programs, CONFIG, target=Keeping(10_000), cache=ExecutableCache(folder))
    assert record.seconds["wait"] > 0
    print(record.cache)
    os.waitpid(child, 0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    affine = MODELS["affine"]
    job = {"killed": killed, "together": together, "crashing": crashing}[sys.argv[1]]
    job(captured(affine.fresh(), affine.batch()).programs, Path(sys.argv[2]))
