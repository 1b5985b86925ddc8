"""MultiConv: convolutions that do not depend on each other, with settings for all of them."""

from typing import Any, Self

import torch

from abele import _torch
from abele.trace import scopes
from poptorch._error import error, require
from poptorch._forward.tracing import current
from poptorch.enums import MultiConvPlanType

_MARK = "multi_conv"
_CONVOLUTIONS = (
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_overrideable.default,
    # As they are called, where forward is recorded for a file.
    torch.ops.aten.conv1d.default,
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv3d.default,
    torch.ops.aten.conv1d.padding,
    torch.ops.aten.conv2d.padding,
    torch.ops.aten.conv3d.padding,
    torch.ops.aten.conv_transpose1d.default,
    torch.ops.aten.conv_transpose2d.input,
    torch.ops.aten.conv_transpose3d.input,
)


class MultiConv:
    """Groups the convolutions inside; the group is checked when a model is compiled.

    Differs from the original: convolutions run one after the other whatever the settings say, and
    with the same numbers.
    """

    def __init__(self):
        self._settings: dict[str, Any] = {}

    def availableMemoryProportions(self, value: float | list[float] | None) -> Self:
        """Advise on scratch memory.

        Args:
            value: from 0 to 1, for all convolutions or one for each; None withdraws it.

        Raises:
            AssertionError: it is something else.
        """
        require(
            value is None or _all_are(value, (float, int)),
            f"Invalid available memory proportions {value!r}: give a float or a list of floats",
        )
        return self._set("availableMemoryProportions", value)

    def partialsTypes(self, value: torch.dtype | list[torch.dtype] | None) -> Self:
        """Choose the type of partial sums; no effect here.

        Args:
            value: torch.float or torch.half, for all convolutions or one for each; None withdraws
                it.

        Raises:
            ValueError: another type.
        """
        for dtype in value if isinstance(value, list | tuple) else [value]:
            if dtype not in (None, torch.float, torch.half):
                raise ValueError(f"Invalid partials type {dtype!r}: use torch.float or torch.half.")
        return self._set("partialsTypes", value)

    def enableConvDithering(self, value: bool | list[bool] | None) -> Self:
        """Spread convolutions over tiles; no effect here.

        Args:
            value: for all convolutions or one for each; None withdraws it.

        Raises:
            ValueError: it is something else.
        """
        if value is not None and not _all_are(value, bool):
            raise ValueError(f"Invalid dithering {value!r}: give a bool or a list of bools.")
        return self._set("enableConvDithering", value)

    def planType(self, value: MultiConvPlanType | None) -> Self:
        """Choose how the group is planned; no effect here.

        Args:
            value: the choice; None withdraws it.

        Raises:
            AssertionError: it is something else.
        """
        require(
            value is None or isinstance(value, MultiConvPlanType),
            f"Invalid plan type {value!r}: give a poptorch.MultiConvPlanType",
        )
        return self._set("planType", value)

    def perConvReservedTiles(self, value: int | None) -> Self:
        """Set the tiles kept for each convolution; no effect here.

        Args:
            value: how many; None withdraws it.

        Raises:
            AssertionError: it is something else.
        """
        require(
            value is None or isinstance(value, int), f"Invalid reserved tiles {value!r}: an int"
        )
        return self._set("perConvReservedTiles", value)

    def cycleBackOff(self, value: float | None) -> Self:
        """Set how far plans may be from the fastest; no effect here.

        Args:
            value: a proportion; None withdraws it.

        Raises:
            AssertionError: it is something else.
        """
        require(
            value is None or isinstance(value, float | int),
            f"Invalid cycle back off {value!r}: a float",
        )
        return self._set("cycleBackOff", value)

    def _set(self, name: str, value: Any) -> Self:
        self._settings[name] = value
        return self

    def __enter__(self) -> Self:
        if current() is not None:
            if scopes.current(_MARK) is not None:
                raise error(
                    "Nested poptorch.MultiConv is not supported. Leave the outer one first."
                )
            # A fresh object, by which the operators of this entry are known.
            scopes.mark(_MARK, {k: v for k, v in self._settings.items() if v is not None})
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        if current() is None:
            return
        settings = scopes.mark(_MARK, None)
        if type is None:
            self._check(settings)

    def _check(self, settings: dict[str, Any]) -> None:
        count = sum(
            node.target in _CONVOLUTIONS and node.meta.get("custom", {}).get(_MARK) is settings
            for node in _torch.traced_nodes()
        )
        if not count:
            raise error(
                "Unexpected end of an empty poptorch.MultiConv: there is no convolution in it. "
                "Remove it, or move the convolutions inside."
            )
        for name, values in settings.items():
            if isinstance(values, list | tuple) and len(values) != count:
                raise error(
                    f"Invalid number of values for MultiConv.{name}: there are {count} "
                    f"convolutions inside and {len(values)} values, {values!r}. Give one value for "
                    "all of them, or one for each."
                )


def _all_are(value: Any, kinds: type | tuple[type, ...]) -> bool:
    values = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(item, kinds) for item in values)
