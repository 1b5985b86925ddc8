"""The page about sambaflow runs, block by block."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_runs(tmp_path, capsys):
    page = (ROOT / "docs" / "sambaflow.md").read_text()
    assert len(page.splitlines()) <= 100
    script = tmp_path / "document.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)))
    runpy.run_path(str(script))
    assert "target='reference'" in capsys.readouterr().out
