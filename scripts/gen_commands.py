"""Write the reference of poprun's options and of CosmicTagger's configuration.

python scripts/gen_commands.py           write docs/reference/poprun.md and cosmictagger.md
python scripts/gen_commands.py --check   exit 1 if a page is stale
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from cosmictagger.commands import _default, attributes  # noqa: E402 - after the path
from cosmictagger.config.composing import GROUPS, PRESETS, RENAMED  # noqa: E402
from cosmictagger.config.keys import DATA, MODES, LearningRates, Optimizer, Run, Torch  # noqa: E402
from cosmictagger.config.network import _CHOICES, EventLabel, Network, Vertex  # noqa: E402
from popdist._run import command_line  # noqa: E402

FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/gen_commands.py from the program; do not edit. -->"
POPRUN = f"""\
{NOTE}

# Options of poprun

`poprun [options] PROGRAM [arguments]`. A value follows after a space or `=`; booleans are yes, no,
true, false, 1 or 0. The [guide](../poprun.md) shows how options work together.
"""
ENVIRONMENT = """\
## Environment of an instance

| variable | content |
|---|---|
| `POPDIST_NUM_TOTAL_REPLICAS`, `POPDIST_NUM_LOCAL_REPLICAS` | replicas of all instances, and of this one |
| `POPDIST_REPLICA_INDEX_OFFSET` | number of its first replica |
| `POPDIST_NUM_IPUS_PER_REPLICA`, `POPDIST_UNIFORM_REPLICAS_PER_INSTANCE` | as given; 1 |
| `POPDIST_LOCAL_INSTANCE_INDEX` | its number on its host |
| `OMPI_COMM_WORLD_SIZE`, `_RANK`, `_LOCAL_SIZE`, `_LOCAL_RANK` | instances and its number, in all and on its host |
| `WORLD_SIZE`, `RANK`, `LOCAL_WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT` | the same for `torch.distributed` |
| `TORCHELASTIC_RESTART_COUNT`, `TORCHELASTIC_MAX_RESTARTS` | number of this attempt, from 0; `--max-restarts` |
| `TORCHELASTIC_USE_AGENT_STORE` | True: poprun holds the store, no instance should |
| `ABELE_RUN_SECRET` | instances of one run have it in common and meet nobody else; new in each run |
| `POPTORCH_CACHE_DIR` | `--executable-cache-path`, from the root |
| `POPTORCH_DEFAULT_OPTIONS` | with `--offline-mode`: the offline target, next to what was there |
| `OMP_NUM_THREADS`, `PYTHONUNBUFFERED` | its share of the cores, and 1, unless set |

The original's `POPLAR_TARGET_OPTIONS` and `IPUOF_VIPU_API_*` are not set: they describe hardware.
"""
TAGGER = f"""\
{NOTE}

# Configuration of CosmicTagger

Keys are given as `KEY=VALUE`. An enumeration takes a name or a number. `cosmictagger --help` prints
the same. The [guide](../cosmictagger.md) shows runs.
"""


def poprun() -> str:
    """Return the page of poprun's options."""
    lines = [POPRUN]
    for group, options in groupby(command_line.OPTIONS, key=lambda each: each.group):
        lines += [f"## {group.capitalize()}", "", "| option | default | meaning |", "|---|---|---|"]
        for each in options:
            call = " ".join([f"--{each.name}", command_line.metavar(each)]).strip()
            text = "no effect" if group == command_line.NO_EFFECT else each.help
            lines.append(f"| `{call}` | {command_line.default(each)} | {text} |")
        lines.append("")
    return "\n".join([*lines, ENVIRONMENT])


def cosmictagger() -> str:
    """Return the page of CosmicTagger's keys."""
    choices = {
        "mode=": MODES,
        "data=": DATA,
        "network=": GROUPS["network"],
        "--config-name": PRESETS,
    }
    lines = [TAGGER, "## Choices", "", "| choice | names |", "|---|---|"]
    lines += [f"| `{key}` | {_names(values)} |" for key, values in choices.items()]
    lines += ["", "## Output", "", "| key | default | meaning |", "|---|---|---|"]
    lines.append(
        "| `output_dir` | `output/torch/NETWORK/RUN_ID/` | folder of everything it writes |"
    )
    sections: list[tuple[str, str, Any]] = [("run", "", Run)]
    sections += [("mode", f", mode={name}", kind) for name, kind in MODES.items()]
    sections += [("mode.optimizer", "", Optimizer)]
    sections += [("mode.optimizer.lr_schedule", "", LearningRates)]
    sections += [("data", f", data={name}", kind) for name, kind in DATA.items()]
    sections += [("framework", "", Torch), ("network", "", Network)]
    sections += [("network.classification", "", EventLabel), ("network.vertex", "", Vertex)]
    for prefix, where, kind in sections:
        lines += ["", f"## {prefix}{where}", "", "| key | default | meaning |", "|---|---|---|"]
        lines += _rows(prefix, kind)
    lines += ["", "## Keys of version 2.1", "", "The original's version 2.1 names these otherwise."]
    lines += ["", "| 2.1 | here |", "|---|---|"]
    lines += [f"| `{old}` | `{new}` |" for old, new in RENAMED.items()]
    return "\n".join(lines) + "\n"


def _names(values: Any) -> str:
    return ", ".join(f"`{each}`" for each in values)


def _rows(prefix: str, kind: Any) -> Iterator[str]:
    descriptions = attributes(kind)
    for each in fields(kind):
        text = descriptions.get(each.name, "")
        hidden = not text or is_dataclass(each.default_factory)
        if not hidden and not text.startswith("set by"):
            if values := prefix == "network" and _CHOICES.get(each.name):
                text += f": {_names(value.name for value in values)}"
            shown = _default(each)
            yield f"| `{prefix}.{each.name}` | {f'`{shown}`' if shown else ''} | {text} |"


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if stale")
    options = parser.parse_args()
    stale = 0
    for page in (poprun, cosmictagger):
        path = FOLDER / f"{page.__name__}.md"
        if path.is_file() and path.read_text("utf-8") == page():
            continue
        if options.check:
            stale = 1
            print(f"{path.relative_to(ROOT)} is stale: run python scripts/gen_commands.py")
        else:
            path.write_text(page(), "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
