"""How long ``abele fit`` takes to answer for CosmicTagger's A21, with nothing cached.

python benchmarks/fit_answer.py --record    three answers, each by a new process with an empty cache

From the start of the command to its end, so with imports, the application's own start and the
measurement of the machine's limits.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

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
    options = parser.parse_args()
    answers = [answer() for _ in range(options.answers)]
    result = {"environment": harness.environment(), "answers": answers}
    for each in answers:
        print(f"{each['seconds']:.1f} s, {each['cpu_s']:.1f} s of the processor: {each['said']}")
    if options.record:
        print(f"record: {harness.write_record('answer', result)}")


def answer() -> dict[str, object]:
    """One answer: seconds, those of the processor, and the sentence."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "abele", "fit", str(_SCRIPT), "--limit", "8GiB", "--json"]
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        before, began = os.times(), time.perf_counter()
        ended = subprocess.run(
            [*command, "--", *_ARGUMENTS],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds, after = time.perf_counter() - began, os.times()
        if ended.returncode:
            sys.exit(ended.stderr)
        used = after.children_user + after.children_system
        used -= before.children_user + before.children_system
        said = json.loads(ended.stdout)["sentence"]
        return {"seconds": round(seconds, 2), "cpu_s": round(used, 2), "said": said}


if __name__ == "__main__":
    main()
