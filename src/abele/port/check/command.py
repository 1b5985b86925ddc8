"""Checks a port on the command line: a bar while it runs, the table, the exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from abele.errors import CheckError
from abele.port.check.run import check

CANNOT = 2


def checked(
    original: Path,
    port: Path,
    steps: int,
    arguments: Sequence[str],
    *,
    timeout_s: float = 600.0,
    python: str = sys.executable,
    back: bool = False,
    instances: int = 1,
) -> int:
    """Compare a port with its original, print the answer, and return the exit status.

    Args:
        original: as for ``check``.
        port: likewise.
        steps: likewise.
        arguments: likewise.
        timeout_s: likewise.
        python: likewise.
        back: likewise.
        instances: likewise.

    Returns:
        0 if they are equal, 1 if they differ, 2 if they cannot be compared.
    """
    with tqdm(total=steps, desc="steps compared", disable=None, leave=False) as bar:

        def move(step: int) -> None:
            bar.update(step - bar.n)

        try:
            comparison = check(
                original,
                port,
                steps,
                arguments,
                timeout_s=timeout_s,
                progress=move,
                python=python,
                back=back,
                instances=instances,
            )
        except CheckError as error:
            bar.close()
            print(f"abele port: {error}", file=sys.stderr)
            return CANNOT
    print(comparison)
    return comparison.status
