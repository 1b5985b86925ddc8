"""The process that compiles while another one steps.

It reads a job, compiles it, stores the executable and says so. It has no state besides, imports
nothing of the user's, and ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from abele.compile import executable, jobs
from abele.compile.cache import CacheWarning, ExecutableCache
from abele.compile.compiling import compile_programs, needed_once
from abele.compile.jobs import Job, Result
from abele.compile.native import end_with
from abele.errors import CompilerError
from abele.storage.values import decode


def main(folder: str, parent: str) -> None:
    """Does the job in ``folder`` for the process ``parent``; standard input is its lifeline."""
    end_with(int(parent))
    do(Path(folder))


def do(folder: Path) -> None:
    """Does the job in ``folder`` and writes what came of it there.

    Raises:
        OSError: that cannot be written.
    """
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always", CacheWarning)
        try:
            result = _made(folder)
        except Exception as error:  # noqa: BLE001 - the other process has to be told
            log = error.log if isinstance(error, CompilerError) else ""
            result = Result(problem=f"{error} ({type(error).__name__})", log=log)
    texts = tuple(str(each.message) for each in shown if each.category is CacheWarning)
    jobs.write_result(folder, dataclasses.replace(result, warnings=texts))


def _made(folder: Path) -> Result:
    job = jobs.read(folder)
    alone = ExecutableCache(folder)
    if job.cache is None:
        return _compiled(job, alone, alone)
    cache, key = ExecutableCache(job.cache), executable.key_of(job.parts)
    with cache.only_one(key, lambda: None) as may_be_there:
        if may_be_there and cache.load(job.programs, job.parts, job.target) is not None:
            return Result(folder=job.cache)
        return _compiled(job, cache, alone)


def _compiled(job: Job, cache: ExecutableCache, alone: ExecutableCache) -> Result:
    """Compiles and stores; in the job's own folder if the cache cannot be written."""
    torch.set_num_threads(job.threads)
    dtype = job.parts["choice"].get("default_dtype", "float32")
    torch.set_default_dtype(decode({"dtype": dtype}))  # code depends on it
    _keep_temporary_files_in(alone.folder)
    started = time.perf_counter()
    with contextlib.suppress(CompilerError):
        job.target.prepare(needed_once(job.target, job.programs, job.parts))
    made = compile_programs(job.target, job.programs, job.parts)
    seconds = time.perf_counter() - started
    for place in (cache, alone):
        if place.store(made):
            return Result(folder=str(place.folder), seconds=seconds)
    return Result(problem="the executable could not be written", seconds=seconds)


def _keep_temporary_files_in(folder: Path) -> None:
    """Keep compilers' files, which would stay behind if this process is killed, in its folder.

    Not before: where locks are is for all processes the same.
    """
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
