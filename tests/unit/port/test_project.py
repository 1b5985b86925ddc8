"""Names that one file passes on to others: what they stand for, and switches of compute modes."""

import pytest

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

MODES = "import enum\n\n\nclass ComputeMode(enum.Enum):\n    CPU = 0\n    GPU = 1\n"
TRAIN = (
    "import torch\n\n{line}\n\n"
    "model = torch.nn.Linear(4, 3)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n\n\n"
    "def train(settings):\n"
    "    device = 'cuda' if settings.mode == {name}.GPU else 'cpu'\n"
    "    model.to(device)\n"
    "    for _ in range(3):\n"
    "        optimizer.zero_grad()\n"
    "        loss = model(torch.ones(8, 4)).square().mean()\n"
    "        loss.backward()\n"
    "        optimizer.step()\n"
)
#: How files pass the enumeration on, and how the script imports it.
WAYS = {
    "the file itself": ({}, "from src.conf.modes import ComputeMode", "ComputeMode"),
    "a package": (
        {"src/conf/__init__.py": "from src.conf.modes import ComputeMode\n"},
        "from src.conf import ComputeMode",
        "ComputeMode",
    ),
    "a package, relatively": (
        {"src/conf/__init__.py": "from .modes import ComputeMode\n"},
        "from src.conf import ComputeMode",
        "ComputeMode",
    ),
    "two packages and a star": (
        {
            "src/conf/__init__.py": "from .modes import *\n",
            "src/__init__.py": "from .conf import ComputeMode as Mode\n",
        },
        "from src import Mode",
        "Mode",
    ),
    "the package's name": (
        {"src/conf/__init__.py": "from .modes import ComputeMode\n"},
        "import src.conf as conf",
        "conf.ComputeMode",
    ),
    "packages that import each other": (
        {
            "src/conf/__init__.py": "from ..other import *\nfrom .modes import *\n",
            "src/other.py": "from .conf import *\n",
        },
        "from src.conf import ComputeMode",
        "ComputeMode",
    ),
}


def ported(files, line, name, modes=MODES):
    texts = {"src/conf/modes.py": modes, **files, "train.py": TRAIN.format(line=line, name=name)}
    return port(Project([Source(path, text) for path, text in texts.items()]))


@pytest.mark.parametrize("way", WAYS)
def test_a_switch_of_compute_modes_is_refused_by_line(way):
    result = ported(*WAYS[way])
    assert result.verdict is Verdict.BLOCKED
    said = [(each.path, each.line, each.code) for each in result.findings]
    assert said == [("src/conf/modes.py", 4, "ABP901"), ("train.py", 10, "ABP901")]
    assert "add a member IPU by hand" in result.findings[0].reason


def test_a_relative_import_of_nothing_is_no_switch():
    files = {"src/conf/__init__.py": "from .elsewhere import ComputeMode\n"}
    result = ported(files, "from src.conf import ComputeMode", "ComputeMode")
    assert result.verdict is Verdict.MODIFIED
    (missing,) = (each for each in result.findings if each.code == "ABP601")
    assert missing.reason.startswith("the module .elsewhere is not here")


@pytest.mark.parametrize(
    ("line", "verdict"), [("import poptorch\n", Verdict.MATCH), ("", Verdict.BLOCKED)]
)
def test_a_mode_for_ipus_stays_where_the_program_uses_it(line, verdict):
    result = ported({}, *WAYS["the file itself"][1:], modes=f"{line}{MODES}    IPU = 2\n")
    assert result.verdict is verdict
    assert result.after == result.before


def test_classes_are_found_through_a_package():
    net = "from torch import nn\n\n\nclass Net(nn.Linear):\n    pass\n"
    text = TRAIN.format(line="from nets import Net", name="Other").replace(
        "torch.nn.Linear(4, 3)", "Net(4, 3)"
    )
    files = {"nets/__init__.py": "from .net import Net\n", "nets/net.py": net, "train.py": text}
    result = port(Project([Source(path, each) for path, each in files.items()]))
    assert result.verdict is Verdict.MODIFIED
    assert "poptorch.trainingModel(" in result.after["train.py"]
