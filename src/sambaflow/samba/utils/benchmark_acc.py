"""A report of an accuracy as JSON."""

import json
import os
from pathlib import Path
from typing import Any

from abele.storage import atomic


class AccuracyReport:
    """Named values to be saved.

    Args:
        values: what to report: ``val_accuracy``, ``val_loss``, ``batch_size``, ...
    """

    def __init__(self, **values: Any):
        self.values = values

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the values as JSON, atomically."""
        text = json.dumps(self.values, indent=1, default=float)
        atomic.write_text(Path(file), text)
