"""Truth of whole events: their class, and the place of the neutrino's vertex in each plane."""

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from cosmictagger.data.larcv import PARTICLE_GROUP, PLANES, VERTEX, EventFile, box_group
from cosmictagger.errors import ConfigError, DataError
from cosmictagger.measures import COSMIC_ONLY

FEWEST = 10
"""An event with fewer neutrino pixels, of all planes as they are run, counts as cosmic only."""

EVENT_LABEL, VERTICES = "event_label", "vertex"
_OUTSIDE = -1.0
_TRIED = 50  # events: of whose vertices some have to be in the image
_KEYS = {
    EVENT_LABEL: ("network.classification.active", PARTICLE_GROUP, "true particles"),
    VERTICES: ("network.vertex.active", box_group(VERTEX), "true vertices"),
}
_FIELDS = ("pdg", "current_type")


class Truth:
    """The true classes and vertices of the events of a file.

    Raises before any event is read if the file lacks what is wanted.

    Args:
        file: opened, with labels.
        wanted: ``EVENT_LABEL``, ``VERTICES``, or both.
    """

    def __init__(self, file: EventFile, wanted: Collection[str]) -> None:
        self._file, self._wanted = file, wanted
        for each in wanted:
            key, group, what = _KEYS[each]
            if not file.has(group):
                raise ConfigError(
                    f"{key}=True was asked for, but {file.path} has no {what}: the group {group} "
                    f"is missing. Take a file that has it, or {key}=False; inference can do "
                    "without truth: data.label= ."
                )
        self._frame = file.frame(VERTEX)
        if EVENT_LABEL in wanted and len(file) and (table := file.particles(0)) is not None:
            missing = set(_FIELDS) - set(table.dtype.names or ())
            if missing:
                raise DataError(
                    f"{file.path}: {PARTICLE_GROUP}/particles lacks {sorted(missing)}, which "
                    "tell the class of an event. Check the file, or fetch it again."
                )
        if VERTICES in wanted:
            self._require_vertices()

    def _require_vertices(self) -> None:
        """Refuse places in other units: with no vertex in any image, nothing would be learned."""
        few = range(min(_TRIED, len(self._file)))
        if any((self._places(event) >= 0).any() for event in few):
            return
        boxes = [boxes for event in few for boxes in self._file.boxes(VERTEX, event) if len(boxes)]
        if len(boxes) >= _TRIED:
            raise DataError(
                f"{self._file.path}: none of the {len(boxes)} true vertices of the first "
                f"{len(few)} events lies in its image, which spans {self._frame.size[0]} from "
                f"{self._frame.origin[0]} in plane 0, but the first is at {boxes[0][0]}. Give "
                f"{box_group(VERTEX)} the units of the images, or set network.vertex.active=False."
            )

    def read(self, event: int, label: npt.NDArray) -> tuple[int, npt.NDArray[np.float64]]:
        """Return the class of an event and where its vertex is.

        Args:
            event: its number in the file.
            label: its labels as they are run.

        Returns:
            The class by its position in ``EVENT_CLASSES``, and [3, 2], row and column in each
            plane as shares of the image; outside of 0 to 1 if the vertex is not in it.
        """
        kind = COSMIC_ONLY
        if np.count_nonzero(label == 2) >= FEWEST:
            kind = self._class(event) if EVENT_LABEL in self._wanted else 0
        if VERTICES in self._wanted and kind != COSMIC_ONLY:
            return kind, self._places(event)
        return kind, np.full((PLANES, 2), _OUTSIDE)

    def _places(self, event: int) -> npt.NDArray[np.float64]:
        """Return the first box of each plane as shares of the image."""
        places = np.full((PLANES, 2), _OUTSIDE)
        for plane, boxes in enumerate(self._file.boxes(VERTEX, event)):
            if len(boxes):
                shares = (boxes[0] - self._frame.origin[plane]) / self._frame.size[plane]
                inside = np.isfinite(shares).all() and (abs(shares - 0.5) < 0.5).all()
                places[plane] = shares if inside else _OUTSIDE
        return places

    def _class(self, event: int) -> int:
        """Return what the first particle, the neutrino, says of an event."""
        particles = self._file.particles(event)
        first = None if particles is None or not len(particles) else particles[0]
        if first is not None and first["current_type"] == 1:
            return 2
        flavour = None if first is None else abs(int(first["pdg"]))
        if flavour not in (12, 14):
            found = "no particles" if first is None else f"the pdg code {first['pdg']} first"
            raise DataError(
                f"{self._file.path}: event {event} has {FEWEST} neutrino pixels or more, but "
                f"{PARTICLE_GROUP} has {found}, not 12 or 14 of a neutrino. Remove the event, or "
                "set network.classification.active=False."
            )
        return int(flavour == 14)
