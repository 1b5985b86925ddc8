"""The table of the README: training steps of usual models, ours beside its peers.

`rows.py` says what is measured, `ways.py` how each peer does it, `serving.py` is the process of one
peer, `measuring.py` lets the processes take turns, `page.py` makes the table of records.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A checkout needs no installation.
for _folder in ("examples", "src"):
    if str(ROOT / _folder) not in sys.path:
        sys.path.insert(0, str(ROOT / _folder))
