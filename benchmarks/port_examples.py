"""Ports the examples of PyTorch unedited, checks them step by step, and says which are equal.

python benchmarks/port_examples.py CHECKOUT
python benchmarks/port_examples.py CHECKOUT --only mnist regression --record

The page has of each example the newest result that is recorded.

CHECKOUT has the files of github.com/pytorch/examples. They run on data that are made up, with
``standins/`` for what does not import beside this torch, in a folder of their own. Examples that
should be ported by program are not touched; those that need an edit get the one that the table
names; of those that cannot be ported the first line that says so is shown. Those of several
processes run in two, beside their ports under poprun.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "src")]

from benchmarks import harness, port_examples_processes  # noqa: E402
from benchmarks.port_examples_data import prepare  # noqa: E402
from benchmarks.port_examples_list import EXAMPLES, Example  # noqa: E402
from benchmarks.port_examples_page import row  # noqa: E402

from abele.errors import CheckError  # noqa: E402 - after the path
from abele.port import files  # noqa: E402
from abele.port.check import Comparison, check  # noqa: E402
from abele.port.engine import Port, port  # noqa: E402
from abele.port.finding import Verdict  # noqa: E402

STANDINS = HERE / "standins"


def main() -> int:
    """Port all, print a table; with --record also keep the result."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("checkout", type=Path, help="folder with the examples")
    parser.add_argument("--only", nargs="+", help="names of examples")
    parser.add_argument("--steps", type=int, default=20, help="updates to compare (default 20)")
    parser.add_argument("--record", action="store_true", help="keep the result under records/")
    parser.add_argument(
        "--limit", type=float, default=900, help="seconds that an example may take (default 900)"
    )
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    result: dict[str, Any] = {"steps": options.steps, "limit_s": options.limit, "examples": []}
    path = None
    for example in EXAMPLES:
        if options.only and example.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            said = of_example(example, checkout, options.steps, options.limit)
            result["examples"].append(said)
        print(row(result["examples"][-1]), flush=True)
        if options.record:  # after each, because the next may be stopped
            path = _keep(result, path)
    return 0 if all(each["as_asked"] for each in result["examples"]) else 1


def _keep(result: dict[str, Any], path: Path | None) -> Path:
    if path is not None:
        path.unlink()
    written = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    more = {"environment": harness.environment(), "written": written}
    return harness.write_record("port-examples", more | result)


def of_example(
    example: Example, checkout: Path, steps: int, limit_s: float = 900
) -> dict[str, Any]:
    """Port one in the present folder and compare it.

    Args:
        example: which one.
        checkout: folder with the examples.
        steps: updates to compare.
        limit_s: how long the comparison may take, in seconds.
    """
    script = Path("program") / Path(example.script).name
    shutil.copytree((checkout / example.script).parent, script.parent)
    for name, pattern, text in example.edits:
        _edit(script.parent / name, pattern, text)
    began = time.process_time()
    ported = port(files.read(script))
    said: dict[str, Any] = {
        "name": example.name,
        "asked": example.asked,
        "edits": list(example.notes),
        "verdict": ported.verdict.value,
        "lines": sum(map(len, map(str.splitlines, ported.before.values()))),
        "changed": _changed(ported),
        "port_cpu_s": time.process_time() - began,
        "named": [
            f"{each.path}:{each.line} {each.code}: {each.text}"
            for each in ported.findings
            if each.verdict in (Verdict.MANUAL, Verdict.BLOCKED)
        ],
    }
    arguments = example.arguments
    if ported.verdict is not Verdict.BLOCKED and arguments is not None:
        files.write(ported, script, Path("ported"))
        prepare()
        pair = script, Path("ported") / script.name
        given = (*pair, arguments.split(), steps)
        if example.processes == 1:
            said |= _compared(*given, limit_s)
        else:
            said |= port_examples_processes.compared(*given, example.processes, limit_s)
    return said | {"as_asked": _as_asked(said, example, steps)}


def _edit(path: Path, pattern: str, text: str) -> None:
    after, count = re.subn(pattern, text, path.read_text(), count=1)
    if not count:
        raise SystemExit(f"{path.name} is another version: {pattern!r} is not in it")
    path.write_text(after)


def _changed(ported: Port) -> int:
    """Lines of the programs that the port takes out or puts something else for."""
    lines = files.difference(ported).splitlines()
    return sum(line.startswith("-") and not line.startswith("---") for line in lines)


def _compared(
    original: Path, ported: Path, arguments: Sequence[str], steps: int, limit_s: float
) -> dict[str, Any]:
    began = time.monotonic()
    bar = tqdm(total=2 * steps, desc=original.stem, leave=False, disable=None)

    def progress(updates: int) -> None:
        bar.update(updates - bar.n)

    try:
        with _standins(), bar:
            comparison = check(
                original, ported, steps, arguments, timeout_s=limit_s, progress=progress
            )
    except CheckError as error:
        return {"error": str(error)}
    equal = sum(each.same_loss is True for each in comparison.steps)
    return {
        "equal_losses": equal,
        "tensors": comparison.compared,
        "difference": _difference(comparison),
        "notes": list(comparison.notes),
        "check_s": time.monotonic() - began,
    }


@contextlib.contextmanager
def _standins() -> Iterator[None]:
    """While open, programs that are checked find the stand-ins, if nothing better is installed."""
    sys.path.append(str(STANDINS))
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        yield
    finally:
        sys.path.remove(str(STANDINS))
        del os.environ["PYTHONWARNINGS"]


def _difference(comparison: Comparison) -> str | None:
    first = comparison.difference
    if first is None:
        return None
    far = "" if first.far is None else f" by {first.far:.1e} of it"
    return f"{first.kind} {first.name} after step {first.step}{far}"


def _as_asked(said: dict[str, Any], example: Example, steps: int) -> bool:
    """Whether an example is what it should be: blocked, or equal in every step."""
    if example.asked == "blocked":
        return said["verdict"] == Verdict.BLOCKED.value
    if said["verdict"] == Verdict.BLOCKED.value:
        return False
    if example.arguments is None:
        return True
    return said.get("equal_losses") == steps and said["difference"] is None


if __name__ == "__main__":
    sys.exit(main())
