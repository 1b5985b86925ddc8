"""How long ``abele fit`` takes to answer for CosmicTagger's A21, with nothing cached.

python benchmarks/fit_answer.py --record    three answers, each by a new process with an empty cache
python benchmarks/fit_answer.py --limit 800MiB    does not fit: changes are tried after the answer

From the start of the command to the line that answers, and to its end; so with imports, the
application's own start and the measurement of the machine's limits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

from abele.fit.command import STATUS

_SCRIPT = Path(sys.executable).with_name("cosmictagger")
_ARGUMENTS = (
    *("--config-name", "a21", "run.id=fit", "run.compute_mode=IPU", "run.minibatch_size=2"),
    *("data=synthetic", "data.downsample=2"),  # 320 x 512
)


def main() -> None:
    """Measure and print; with --record also keep the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--answers", type=int, default=3, help="processes (default 3)")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    parser.add_argument("--limit", default="8GiB", help="of abele fit (default 8GiB)")
    options = parser.parse_args()
    answers = [answer(options.limit) for _ in range(options.answers)]
    result = {"environment": harness.environment(), "answers": answers}
    for each in answers:
        print(
            f"answer after {each['answered_s']:.1f} s, end after {each['seconds']:.1f} s, "
            f"{each['cpu_s']:.1f} s of the processor: {each['said']}"
        )
    if options.record:
        print(f"record: {harness.write_record('answer', result)}")


def answer(limit: str) -> dict[str, object]:
    """One answer: seconds until it is there and to the end, those of the processor, the sentence.

    Args:
        limit: of the command.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", "abele", "fit", str(_SCRIPT), "--limit", limit]
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        before, began = os.times(), time.perf_counter()
        with subprocess.Popen(
            [*command, "--", *_ARGUMENTS],
            cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            said, answered = process.stdout.readline().strip(), time.perf_counter() - began
            process.stdout.read()
        seconds, after = time.perf_counter() - began, os.times()
        if process.returncode not in STATUS.values():
            errors.seek(0)
            sys.exit(errors.read())
        used = after.children_user + after.children_system
        used -= before.children_user + before.children_system
        return {
            "limit": limit,
            "answered_s": round(answered, 2),
            "seconds": round(seconds, 2),
            "cpu_s": round(used, 2),
            "said": said,
        }


if __name__ == "__main__":
    main()
