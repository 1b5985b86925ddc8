"""Metadata for ``session.compile(metadata=...)``: accepted, without effect."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar


@dataclasses.dataclass
class ConvTilingMetadata:
    """Tiling of a convolution; accepted without effect.

    Attributes:
        key: under which it goes into the metadata dictionary.
        original_size: of the image.
        others: whatever else a program says.
    """

    key: ClassVar[str] = "conv_tiling"
    original_size: Sequence[int] = ()
    others: dict[str, Any] = dataclasses.field(default_factory=dict)
