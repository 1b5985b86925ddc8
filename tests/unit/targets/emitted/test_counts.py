"""How much code networks become: numbers that change only on purpose.

``pytest tests/unit/targets/emitted/test_counts.py --update-golden`` writes them anew.
"""

import collections
import json
import sys
from pathlib import Path

import pytest
import torch

from abele import passes
from abele.targets.cpu.emitted.lowering import Emitted, planned_code
from abele.targets.translation.operations import Foreign
from garment_model import ClassificationModel
from helpers.runs import captured, rule_for

ROOT = Path(__file__).parents[4]
GOLDEN = ROOT / "tests" / "golden" / "emitted-counts.json"
sys.path.append(str(ROOT))

from benchmarks.models import dense, gpt, recurrent  # noqa: E402 - after the path

NETWORKS = {
    "introduction of 16 images": lambda: (
        ClassificationModel(),
        (torch.randn(16, 1, 28, 28), torch.randint(0, 10, (16,))),
        "sgd",
    ),
    "dense of 64 rows": lambda: (dense.Dense(), dense.batch(64), "adam"),
    "recurrent of 32 sequences": lambda: (recurrent.Recurrent(), recurrent.batch(32), "adam"),
    "gpt of 12 texts": lambda: (gpt.GPT(), gpt.batch(12), "adam"),
}


def counts(name):
    """Of the training step; ``torch`` has the operators that are left to torch."""
    module, batch, rule = NETWORKS[name]()
    (program,) = captured(module, batch, rule=rule_for(module, rule)).programs
    plan = planned_code(passes.run_only(passes.run(program), Emitted.passes))
    parts = plan.source.parts
    foreign = [part for part in parts if isinstance(part, Foreign)]
    return {
        "functions": plan.source.kernels,
        "segments": len(parts) - len(foreign),
        "calls": sum(part.calls for part in parts if not isinstance(part, Foreign)),
        "torch": dict(sorted(collections.Counter(str(p.part_of.target) for p in foreign).items())),
        "arena bytes": plan.size,
        "lines": len(plan.source.text.splitlines()),
    }


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_become_as_much_code_as_before(name, update_golden):
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    now = counts(name)
    if update_golden:
        golden = {each: now if each == name else golden.get(each) for each in NETWORKS}
        GOLDEN.write_text(json.dumps(golden, indent=2) + "\n")
    assert golden[name] == now, "see --update-golden"


def test_the_golden_numbers_are_those_of_these_networks():
    assert list(json.loads(GOLDEN.read_text())) == list(NETWORKS)
