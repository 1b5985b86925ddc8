"""`TensorLocationSettings` and `Options.TensorLocations`: where the original kept its tensors.

Everything here is validated, stored and without effect: where a tensor lives never changes it.
"""

import copy
from typing import Any, Self

from poptorch._error import require
from poptorch.options import _table
from poptorch.options._container import OptionsDict


class TensorLocationSettings(OptionsDict):
    """Location and division of one kind of tensor; setters can be chained.

    Differs from the original: settings are checked and stored, and have no effect.
    """

    _store = "TensorLocationSettings"

    def __init__(self) -> None:
        super().__init__(**_table.defaults(self._store))

    def minElementsForOffChip(self, min_elements: int) -> Self:
        """Keep tensors smaller than this on the chip.

        Args:
            min_elements: Number of elements.
        """
        return self._with(minElementsForOffChip=min_elements)

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> Self:
        """Divide only tensors of at least this size among replicas.

        Args:
            min_elements: Number of elements.
        """
        return self._with(minElementsForReplicatedTensorSharding=min_elements)

    def useOnChipStorage(self, use: bool | None = True) -> Self:
        """Keep tensors on the chip or off it.

        Args:
            use: True, False, or None to leave the choice open again.
        """
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._with(onChip=use)

    def useReplicatedTensorSharding(self, use: bool = True) -> Self:
        """Divide tensors among replicas.

        Args:
            use: Whether to divide them.
        """
        return self._with(useReplicatedTensorSharding=use)

    def useIOTilesToLoad(self, use: bool = True) -> Self:
        """Load off-chip tensors through the input-output tiles.

        Args:
            use: Whether to use those tiles.
        """
        return self._with(useIOTilesToLoad=use)

    def useIOTilesToStore(self, use: bool = True) -> Self:
        """Keep on-chip tensors in the input-output tiles.

        Args:
            use: Whether to use those tiles.
        """
        return self._with(useIOTilesToStore=use)

    def _with(self, **value: Any) -> Self:
        self.createOrSet(**value)
        return self


class _TensorLocationOptions(OptionsDict):
    """Settings for each kind of tensor.

    Differs from the original: they are checked and stored, and have no effect.
    """

    _store = "TensorLocations"

    def __init__(self) -> None:
        super().__init__(**_table.defaults(self._store))

    def numIOTiles(self, num_tiles: int) -> Self:
        """Set tiles aside for input and output.

        Args:
            num_tiles: An even number from 32 to 192.
        """
        require(
            isinstance(num_tiles, int) and 32 <= num_tiles <= 192 and num_tiles % 2 == 0,
            f"numIOTiles must be an even number between 32 and 192, not {num_tiles!r}",
        )
        self.createOrSet(num_io_tiles=num_tiles)
        return self

    def setActivationLocation(self, location: TensorLocationSettings) -> Self:
        """Place activations.

        Args:
            location: Settings, copied now.
        """
        return self._place("location_activation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> Self:
        """Place weights.

        Args:
            location: Settings, copied now.
        """
        return self._place("location_weight", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> Self:
        """Place optimizer state.

        Args:
            location: Settings, copied now.
        """
        return self._place("location_optimizer", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> Self:
        """Place gradient accumulators.

        Args:
            location: Settings, copied now.
        """
        return self._place("location_accumulator", location)

    def _place(self, name: str, location: TensorLocationSettings) -> Self:
        require(
            isinstance(location, TensorLocationSettings),
            f"{name} takes a poptorch.TensorLocationSettings, not {location!r}",
        )
        self.createOrSet(**{name: copy.deepcopy(location)})
        return self
