"""Ten plain programs as people write them: what the porter says of each."""

from pathlib import Path

import pytest

from abele.port import files
from abele.port.engine import port, summary
from abele.port.finding import Verdict

SCRIPTS = Path(__file__).parents[2] / "helpers" / "plain_scripts"
#: What holds the others up is PopTorch's: one loss per update, one shape, no values in forward.
NOT_BLOCKED = {
    "diffusion": Verdict.MANUAL,
    "mnist": Verdict.MANUAL,
    "sklearn_regression": Verdict.MODIFIED,
    "unet": Verdict.MODIFIED,
}


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_a_plain_script_is_ported_or_shown_the_decorator(path):
    result = port(files.read(path))
    assert result.verdict is NOT_BLOCKED.get(path.stem, Verdict.BLOCKED)
    shown = "decorate the step (docs/compile.md)" in summary(result)
    assert shown == (result.verdict is Verdict.BLOCKED)
    assert ("It leaves out the rows" in summary(result)) == (
        path.stem in ("mnist", "sklearn_regression", "unet")
    )
