"""The command ``generate``, and the application's help from its configuration's docstrings."""

import argparse
import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from abele.arguments import Parser
from cosmictagger.config.composing import GROUPS, PRESETS
from cosmictagger.config.keys import DATA, MODES, LearningRates, Optimizer, Run, Torch
from cosmictagger.config.network import EventLabel, Network, Vertex

_WIDTH, _COLUMN = 100, 38
_HEAD = """\
cosmictagger: labels every pixel of three-plane liquid-argon images as background, cosmic or
neutrino. The device is an option; network, loss and loop are the same on all of them.

  cosmictagger run.id=first                                trains here, on built-in events
  cosmictagger run.id=first                                once more: goes on where it stopped
  cosmictagger run.id=first mode=inference                 labels events it has not seen; a report
  cosmictagger run.id=ipu run.compute_mode=IPU             the same through poptorch
  cosmictagger run.id=real data.paths.train=F data.paths.val=G run.epochs=25
  cosmictagger run.id=real data.paths.test=H mode=inference
  cosmictagger --config-name a21 data=real run.id=big ...  a published preset
  cosmictagger generate --events 100 --output events.h5    a file of built-in events
  cosmictagger compile run.id=x run.compute_mode=RDU       compiles without training

The network of these runs is small: it learns faster with mode.optimizer.learning_rate=0.003.

Everything goes to output_dir, which is output/torch/NETWORK/RUN_ID/ unless it is given:
process.log, pages with curves and metrics (training.html, report.html of inference), tables,
TensorBoard files, checkpoints/, and run.json, which proves where steps ran.
Ctrl-C ends a run after its step with a checkpoint; a second one ends it at once.
"""
_GROUPS = f"""\
Choose
  mode=       {", ".join(MODES)}
  data=       {", ".join(DATA)}
  network=    {", ".join(GROUPS["network"])}
  --config-name  {", ".join(PRESETS)}
"""


def help_text() -> str:
    """Return the help text of all commands."""
    sections: list[tuple[str, str, Any]] = [("run.", "", Run)]
    sections += [("mode.", f" (mode={name})", kind) for name, kind in MODES.items()]
    sections.append(("mode.optimizer.", "", Optimizer))
    sections.append(("mode.optimizer.lr_schedule.", "", LearningRates))
    sections += [("data.", f" (data={name})", kind) for name, kind in DATA.items()]
    sections += [("framework.", "", Torch), ("network.", "", Network)]
    sections += [("network.classification.", "", EventLabel), ("network.vertex.", "", Vertex)]
    keys = "\n".join(_section(*section) for section in sections)
    return f"{_HEAD}\n{_GROUPS}\nKeys, as KEY=VALUE; names of choices or their numbers\n{keys}"


def _section(prefix: str, location: str, kind: Any) -> str:
    descriptions = attributes(kind)
    lines = [f"\n  {prefix}{location}"]
    for each in fields(kind):
        help_text = descriptions.get(each.name, "")
        if (
            not help_text
            or is_dataclass(each.default_factory)  # has a section of its own
            or help_text.startswith(("set by", "kept for"))
        ):
            continue
        head = f"    {each.name}={_default(each)}"
        # A default that is too long for its column has a line of its own.
        rows = textwrap.wrap(help_text, _WIDTH - _COLUMN)
        lines += [head] if len(head) >= _COLUMN else []
        starts = ["" if len(head) >= _COLUMN else head] + [""] * (len(rows) - 1)
        lines += [f"{s:<{_COLUMN}}{row}" for s, row in zip(starts, rows, strict=True)]
    return "\n".join(lines)


def _default(field: Any) -> str:
    if field.default is None:
        return "null"
    if field.name == "id":
        return "NAME"
    if isinstance(field.default, Enum):
        return field.default.name
    return "" if field.default is MISSING else str(field.default)


def attributes(kind: type) -> dict[str, str]:
    """Parse the ``Attributes:`` section of a class docstring and its bases' into one line each."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, block = inspect.cleandoc(vars(base).get("__doc__") or "").partition("Attributes:\n")
        joined = re.sub(r"\n {8,}", " ", block)
        pairs = re.findall(r"^ {4}(\w+): (.*)$", joined, re.MULTILINE)
        found |= {name: text.rstrip(".") for name, text in pairs}
    return found


def generate(argv: Sequence[str]) -> int:
    """Run ``cosmictagger generate``: write a file of simulated events.

    Returns:
        The exit status.
    """
    args = _generate_parser().parse_args(argv)
    from cosmictagger.data import generator
    from cosmictagger.errors import ConfigError

    path = Path(args.output)
    if path.exists() and not args.force:
        raise ConfigError(f"{path} exists already. Choose another --output, or add --force.")
    size = (args.rows, args.columns)
    generator.generate(path, args.events, args.seed, size, args.cosmic_only)
    print(f"{path}: {args.events} events of {args.rows} x {args.columns}, seed {args.seed}")
    return 0


def _generate_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="cosmictagger generate",
        description="Writes events of the built-in generator in the layout of larcv3 files, so "
        "that they can take the place of real ones (data=real data.file=...).",
    )
    parser.add_argument("--events", type=int, required=True, help="how many")
    parser.add_argument("--output", required=True, help="the file to write")
    parser.add_argument("--seed", type=int, default=1, help="equal seeds give equal events (1)")
    parser.add_argument("--rows", type=int, default=1280, help="height of an image (1280)")
    parser.add_argument("--columns", type=int, default=2048, help="width of an image (2048)")
    share = "share of events without a neutrino (0)"
    parser.add_argument("--cosmic-only", type=float, default=0.0, help=share)
    parser.add_argument("--force", action="store_true", help="replace a file that exists")
    return parser
