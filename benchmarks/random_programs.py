"""Random programs of torch's own operators: does emitted code compute what is interpreted?

python benchmarks/random_programs.py --record    2,000 programs; renews notes/random_programs.md
python benchmarks/random_programs.py --programs 40

Programs are composed of the operators in the database that torch tests itself with, forward and
backward. A program has a number, and the same number is the same program. They run
in pieces, a process each, so that one that kills its process costs a piece and is named by it;
``--pieces FOLDER`` keeps them, and what is there is not run again. Needs the extra ``test``.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import harness
import torch

ROOT = Path(__file__).resolve().parent.parent
# Not the folder of this file: it has the name of the package.
sys.path[0] = str(ROOT / "src")
sys.path.insert(1, str(ROOT / "tests"))

PIECE = 240
PAGE = ROOT / "benchmarks" / "notes" / "random_programs.md"
BEGIN, END = "<!-- written by benchmarks/random_programs.py -->", "<!-- end of what it writes -->"


def main() -> int:
    """Run, print and, with --record, keep the result and renew the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--programs", type=int, default=2000, help="to compare (default 2000)")
    parser.add_argument("--pieces", type=Path, help="a folder in which pieces are kept")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    parser.add_argument("--piece", type=int, nargs=2, metavar=("FIRST", "END"), help="these alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.piece:
        print(json.dumps(piece(*options.piece)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        result = run(options.programs, options.pieces or Path(folder))
    print("\n".join(lines(result)))
    if options.record:
        path = harness.write_record("random_programs", result)
        renew(result, path.name)
        print(f"record: {path.relative_to(ROOT)}")
    return 1 if result["wrong"] else 0


def piece(first: int, end: int) -> dict[str, Any]:
    """Compare the programs of some numbers in this process."""
    from helpers.emitted_agreement import TOGETHER, Agreement

    agreement, began = Agreement(), time.process_time()
    for start in range(first, end, TOGETHER):
        agreement.run(range(start, min(start + TOGETHER, end)))
    return {**agreement.data(), "process_s": round(time.process_time() - began, 1)}


def run(programs: int, folder: Path) -> dict[str, Any]:
    """Compare so many programs, piece by piece.

    Raises:
        RuntimeError: a piece ended with an error, which is in the message.
    """
    from helpers.emitted_agreement import Agreement

    folder.mkdir(parents=True, exist_ok=True)
    agreement, first, process_s = Agreement(), 0, 0.0
    while (missing := programs - agreement.counts["compared"]) > 0:
        end = first + min(PIECE, missing)
        data = _kept(folder / f"{first}-{end}.json", first, end)
        agreement.add(data)
        process_s += data["process_s"]
        print(f"{end} programs: {dict(agreement.counts)}", file=sys.stderr, flush=True)
        first = end
    environment = harness.environment()
    return {
        "environment": environment,
        "numbers": [0, first],
        "process_s": process_s,
        **agreement.data(),
    }


def _kept(path: Path, first: int, end: int) -> dict[str, Any]:
    """Run a piece unless its file exists."""
    if not path.exists():
        part = path.with_suffix(".part")
        part.write_text(json.dumps(_in_new_process(first, end)))
        part.rename(path)
    return json.loads(path.read_text())


def _in_new_process(first: int, end: int) -> dict[str, Any]:
    piece = ["--piece", str(first), str(end)]
    words = [sys.executable, "-W", "ignore", __file__, *piece]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"Programs {first} to {end} ended with {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def lines(result: dict[str, Any]) -> list[str]:
    """Return the result for people, line by line."""
    counts = collections.Counter(result["programs"])
    summary = (
        f"Of {counts['tried']:,} random programs of {len(result['operators'])} operators, forward "
        f"and backward, {counts['compared']:,} ran by emitted code and were compared with the "
        f"interpreter: {counts['wrong'] or 'none'} differed. {counts['taken']:,} are programs that "
        f"the rules take, {counts['declined']:,} they decline, and {counts['untraced']:,} could "
        "not be traced."
    )
    said = [summary, "", "| declined or not traced because | programs |", "|---|---|"]
    reasons = collections.Counter(
        re.sub(r"^\d+ of \d+ operators", "too many operators", why)
        for why in result["declined"].values()
    )
    reasons.update(f"not traced: {why}" for why in result["untraced"].values())
    said += [f"| {reason} | {number} |" for reason, number in reasons.most_common()]
    left = sorted(name.removeprefix("aten.") for name in result["left_to_torch"])
    title = f"{len(left)} operators that are called as torch has them, always or at times"
    names = textwrap.wrap(", ".join(f"`{name}`" for name in left) + ".", 130)
    folded = [f"<details><summary>{title}</summary>", "", *names, "", "</details>"]
    return [*said, "", *folded]


def renew(result: dict[str, Any], record: str) -> None:
    """Replace the numbers of the page."""
    link = f"From [`{record}`](../records/{record}):"
    body = "\n".join([BEGIN, link, "", *lines(result), END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    PAGE.write_text(pattern.sub(lambda _: body, PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main())
