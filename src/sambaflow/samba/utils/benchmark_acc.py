"""Accuracy report as a JSON file."""

import json
import os
from pathlib import Path
from typing import Any

from abele.storage import atomic


class AccuracyReport:
    """Named accuracy values to be saved as JSON.

    Args:
        values: what to report: ``val_accuracy``, ``val_loss``, ``batch_size``, ...
    """

    def __init__(self, **values: Any):
        self.values = values

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write the accuracy values as JSON, atomically."""
        text = json.dumps(self.values, indent=1, default=float)
        atomic.write_text(Path(file), text)
