"""The one bar of a run."""

from collections.abc import Mapping
from typing import IO, Any

from tqdm import tqdm


class Bar:
    """A progress bar with loss, mIoU and images per second; a context manager.

    Args:
        total: steps of this launch.
        label: the mode.
        file: where it is drawn; default standard error, and only if that is a terminal.
        shown: False draws nothing: another instance does.
    """

    def __init__(
        self, total: int | None, label: str, file: IO[str] | None = None, *, shown: bool = True
    ):
        self._bar: Any = tqdm(
            total=total,
            desc=label,
            unit="step",
            file=file,
            disable=not shown or (None if file is None else False),
            dynamic_ncols=True,
        )

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def step(self, metrics: Mapping[str, float]) -> None:
        """One step is done; shows what is known of it."""
        shown = {
            "loss": ("loss", ".3f"),
            "Average/mIoU": ("mIoU", ".3f"),
            "images_per_second": ("images/s", ".2f"),
        }
        texts = {n: format(metrics[k], how) for k, (n, how) in shown.items() if k in metrics}
        if texts:
            self._bar.set_postfix(texts, refresh=False)
        self._bar.update()
