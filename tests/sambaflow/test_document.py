"""The page about sambaflow runs, block by block."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_runs(tmp_path):
    page = (ROOT / "docs" / "sambaflow.md").read_text()
    assert len(page.splitlines()) <= 100
    script = tmp_path / "document.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", page, re.S)))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"ABELE_TARGET": "reference", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "target='reference'" in done.stdout
