"""Checks that images fit a network, before anything is built."""

from __future__ import annotations

from cosmictagger.config.network import Network
from cosmictagger.errors import ConfigError

FULL_SIZE = (1280, 2048)  # rows (time) and columns (wires) of an SBND image


def check_image_size(
    network: Network, image_size: tuple[int, int], stored: tuple[int, int] = FULL_SIZE
) -> None:
    """See to it that every halving of the network meets an even size.

    Args:
        network: its depth counts.
        image_size: rows and columns.
        stored: those of the file, before they shrink.
    """
    rows, columns = image_size
    factor = 2**network.depth
    if rows > 0 and columns > 0 and rows % factor == 0 and columns % factor == 0:
        return
    raise ConfigError(
        f"A network of depth {network.depth} halves the image {network.depth} times, so rows and "
        f"columns must be multiples of {factor}, but the image has {rows} x {columns}. "
        f"{_advice(network.depth, stored)}"
    )


def check_not_sparse(sparse: bool) -> None:
    """Refuse ``framework.sparse=True``: no library computes it here.

    What was tried with torch 2.13 on a CPU: spconv 2.3.8 installs and runs forward, and its
    backward asks for CUDA. The package index has no torchsparse. The metadata of MinkowskiEngine's
    source package cannot be made, so pip does not install it.
    """
    if sparse:
        raise ConfigError(
            "framework.sparse=True was asked for, but there is no sparse network: of the libraries "
            "for sparse convolutions, spconv 2.3.8 computes no gradients without CUDA, torchsparse "
            "is not on the package index, and MinkowskiEngine's package cannot be installed. "
            "Use framework.sparse=False."
        )


def fitting_downsamples(depth: int, size: tuple[int, int] = FULL_SIZE) -> list[int]:
    """Return the values of ``data.downsample`` that make images fit a network's depth."""
    return [k for k in range(16) if all(edge % 2 ** (depth + k) == 0 for edge in size)]


def _advice(depth: int, stored: tuple[int, int]) -> str:
    values = ", ".join(map(str, fitting_downsamples(depth, stored)))
    deepest = max((d for d in range(1, 16) if fitting_downsamples(d, stored)), default=0)
    full = f"{stored[0]} x {stored[1]}"
    if values:
        return (
            f"For images of {full}, data.downsample may be {values} at this depth. "
            "Choose one of these, or a smaller network.depth."
        )
    if not deepest:
        return f"Images of {full} cannot be halved once: no network takes them."
    return f"No data.downsample fits images of {full} to it; network.depth is at most {deepest}."
