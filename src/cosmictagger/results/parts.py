"""A pass that several instances share: each keeps its part in a folder, and one joins them.

    predictions.h5    scores of the part's events, complete before the others are written
    displays.npz      pixels of its events that may be drawn
    results.json      what the report needs of its events

What comes of the parts is what one process would have written, byte for byte: events stand in
their order, whoever had them, and sums are taken over all rows anew.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from abele.storage import atomic
from cosmictagger.data.writer import Event, EventWriter
from cosmictagger.errors import DataError
from cosmictagger.measures.metrics import PLANES
from cosmictagger.measures.physics_metrics import Neutrino
from cosmictagger.results.candidates import Candidates, joined
from cosmictagger.results.events import EventRecord
from cosmictagger.results.files import PREDICTIONS
from cosmictagger.results.predictions import PRODUCERS, open_predictions
from cosmictagger.results.tally import Row, Tally

_ARRAYS = ("pixel", "image", "label", "prediction", "score")


class Part(NamedTuple):
    """What an instance has found out.

    Attributes:
        folder: with its predictions.
        tally: of its events.
        candidates: those of its events that may be drawn.
    """

    folder: Path
    tally: Tally
    candidates: Candidates


def save(part: Part) -> None:
    """Write a part beside its predictions; each file at once or not at all."""
    arrays: dict[str, Any] = {}
    events = []
    for event in part.candidates.events():
        values = dataclasses.asdict(dataclasses.replace(event, planes=()))
        events.append({name: value for name, value in values.items() if name != "planes"})
        for number, plane in enumerate(event.planes):
            for name, array in zip(_ARRAYS, plane, strict=True):
                if array is not None:
                    arrays[f"{event.entry}.{number}.{name}"] = array
    with atomic.replacing(part.folder / "displays.npz") as file:
        np.savez(file, **arrays)
    content = {
        "rows": [dataclasses.asdict(row) for row in part.tally.rows],
        "confusion": part.tally.confusion.tolist(),
        "most": part.candidates.most,
        "seen": part.candidates.seen,
        "events": events,
    }
    atomic.write_text(part.folder / "results.json", json.dumps(content))


def load(folder: Path) -> Part:
    """Read what ``save`` wrote."""
    try:
        return _loaded(folder)
    except (OSError, LookupError, TypeError, ValueError, zipfile.BadZipFile) as problem:
        raise DataError(
            f"The part of a pass in {folder} cannot be read: {problem}. Delete {folder} and start "
            "the pass again."
        ) from problem


def _loaded(folder: Path) -> Part:
    content = json.loads((folder / "results.json").read_text("utf-8"))
    tally = Tally([_row(values) for values in content["rows"]])
    tally.confusion += np.array(content["confusion"], np.int64)
    candidates = Candidates(content["most"])
    with np.load(folder / "displays.npz", allow_pickle=False) as arrays:
        for values in content["events"]:
            candidates.add(_event(values, arrays))
    candidates.seen = content["seen"]
    return Part(folder, tally, candidates)


def join(parts: Sequence[Part]) -> tuple[Tally, Candidates]:
    """Return the tally and the candidates of the whole pass.

    Args:
        parts: of all instances, also of those that had no event.
    """
    rows = sorted((row for part in parts for row in part.tally.rows), key=lambda row: row.entry)
    for before, after in itertools.pairwise(rows):
        if before.entry == after.entry:
            raise DataError(
                f"Event {after.entry} is in two parts of {parts[0].folder.parent}. Delete that "
                "folder and start the pass anew."
            )
    tally = Tally(rows)
    for part in parts:
        tally.confusion += part.tally.confusion
    return tally, joined([part.candidates for part in parts])


def join_predictions(parts: Sequence[Part], path: Path) -> None:
    """Write one file of predictions; an older one stays until the new one is complete.

    Args:
        parts: of all instances; at least one has an event.
        path: the file to make or to replace.
    """
    places = sorted(
        (row.entry, number, event)
        for number, part in enumerate(parts)
        for event, row in enumerate(part.tally.rows)
    )
    numbers = {number for _, number, _ in places}
    files = {number: open_predictions(parts[number].folder / PREDICTIONS) for number in numbers}
    try:
        with EventWriter(path, next(iter(files.values())).image_size, PRODUCERS) as writer:
            for _, number, event in places:
                file = files[number]
                planes = {name: file.sparse(name, event) for name in PRODUCERS}
                writer.write(Event(planes, tuple(int(n) for n in file.event_ids[event])))
    finally:
        for file in files.values():
            file.close()


def _row(values: dict[str, Any]) -> Row:
    neutrino = values["neutrino"]
    return Row(
        values["entry"],
        _three(values["event_id"]),
        values["metrics"],
        None if neutrino is None else Neutrino(**neutrino),
    )


def _event(values: dict[str, Any], arrays: Any) -> EventRecord:
    def plane(number: int) -> Any:
        names = [f"{values['entry']}.{number}.{name}" for name in _ARRAYS]
        return tuple(arrays.get(name) for name in names)

    return EventRecord(
        **{
            **values,
            "event_id": _three(values["event_id"]),
            "size": tuple(values["size"]),
            "planes": tuple(plane(number) for number in range(PLANES)),
        }
    )


def _three(numbers: Sequence[int]) -> tuple[int, int, int]:
    run, subrun, event = numbers
    return run, subrun, event
