"""A pass over events that several instances share: each its own batches, then one joins the parts.

    parts/<instance>-of-<instances>/   in the run's folder, until all parts are joined
        pass.json                      its steps and its proof, written last
        predictions.h5, ...            inference: see `cosmictagger.results.parts`

While the pass is under way the instances exchange nothing. Whatever ends one of them, what others
have completed stays: the next launch with the same configuration, weights and events takes a
complete part as it is, and what was there of an earlier pass is replaced only by a whole new one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from abele.storage import atomic
from cosmictagger import __version__, checkpoints
from cosmictagger.backends import Proof
from cosmictagger.config.checks import plain
from cosmictagger.data import EventLoader
from cosmictagger.errors import InstanceError
from cosmictagger.modes import passes
from cosmictagger.modes.passes import Passed, Step
from cosmictagger.modes.stopping import Stop
from cosmictagger.recording.records import logger

if TYPE_CHECKING:
    from cosmictagger.modes.inference import Pass

_FOLDER, _PASS = "parts", "pass.json"
_FORMAT = 1


def run(one_pass: Pass) -> int | None:
    """Make this instance's part of a pass; the first instance joins all of them.

    Returns:
        The number of the signal that ended any instance early, or None.
    """
    launch, instances = one_pass.launch, one_pass.launch.instances
    identity = _identity(one_pass)
    instances.agree("the pass over the events", identity)
    folders = [_folder(launch.folder, index, instances.count) for index in range(instances.count)]
    with Stop() as stop:
        if _read(folders[instances.index], identity) is None:
            _make(one_pass, stop, folders[instances.index], identity)
        else:
            logger.warning(f"The part in {folders[instances.index]} was complete already.")
        instances.barrier("the end of the steps of a pass")
        signal = None
        with instances.together("joining the parts of the pass"):
            if instances.is_first:
                signal = _join(one_pass, folders, identity)
    return instances.from_first("the end of the pass", signal)


def _folder(output: Path, index: int, count: int) -> Path:
    return output / _FOLDER / f"{index}-of-{count}"


def _identity(one_pass: Pass) -> dict[str, str]:
    """Return what two parts of one pass have in common, as text."""
    launch, events = one_pass.launch, one_pass.events
    files = events.files if isinstance(events, EventLoader) else []
    return {
        "format": str(_FORMAT),
        "version": __version__,
        "configuration": json.dumps(plain(launch.config), sort_keys=True),
        "seed of the data": str(launch.data_seed),
        "weights": checkpoints.weights_hash(one_pass.backend.state_dict()["state_dict"]),
        "number of events": str(events.events),
        "event files": " ".join(file.digest() for file in files),
    }


def _make(one_pass: Pass, stop: Stop, folder: Path, identity: dict[str, str]) -> None:
    """Make the steps of this instance and write its part, ``pass.json`` last."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        collector = stack.enter_context(_collector(one_pass, folder))
        one_pass.loop(stop, collector, lambda step: None)
    if collector is not None:
        from cosmictagger.results import parts

        parts.save(parts.Part(folder, collector.tally, collector.candidates))
    passed = one_pass.passed(stop.signal)
    content = {"identity": identity, **dataclasses.asdict(passed)}
    atomic.write_text(folder / _PASS, json.dumps(content))


def _collector(one_pass: Pass, folder: Path) -> Any:
    if not one_pass.is_inference:
        return contextlib.nullcontext()
    from cosmictagger.results import Collector

    return Collector(
        folder,
        size=one_pass.events.stored_size,
        downsample=one_pass.launch.config.data.downsample,
        displays=one_pass.mode.displays,
    )


def _read(folder: Path, identity: dict[str, str], *, stopped: bool = False) -> Passed | None:
    """Return the part in a folder; None if it is of another pass, or none, or ended early."""
    try:
        content = json.loads((folder / _PASS).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    if content.pop("identity", None) != identity:
        return None
    if content["signal"] is not None and not stopped:
        return None
    steps = [Step(**step) for step in content.pop("steps")]
    return Passed(steps=steps, proof=Proof(**content.pop("proof")), **content)


def _join(one_pass: Pass, folders: Sequence[Path], identity: dict[str, str]) -> int | None:
    """Write the files of the whole pass, and delete the parts when all are there."""
    launch, parts = one_pass.launch, []
    for index, folder in enumerate(folders):
        part = _read(folder, identity, stopped=True)
        if part is None:
            raise InstanceError(
                f"Instance {index} has made its part of the pass, but instance 0 finds none in "
                f"{folder}. All instances need one output_dir, on a file system that they share.",
                instance=index,
            )
        parts.append(part)
    passed = _joined(parts)
    report = _write(one_pass, folders, passed) if one_pass.is_inference and passed.steps else None
    with passes.Records(launch) as records:
        for step in passed.steps:
            records.add(step)
    passes.end(launch, one_pass.backend, passed, report)
    shutil.rmtree(launch.folder / _FOLDER)
    return passed.signal


def _joined(parts: Sequence[Passed]) -> Passed:
    """Return the whole pass; its steps are in order, whoever made them."""
    steps = sorted((step for part in parts for step in part.steps), key=lambda step: step.index)
    rounds = max(len(part.seconds) for part in parts)
    slowest = [
        max(part.seconds[turn] for part in parts if turn < len(part.seconds))
        for turn in range(rounds)
    ]
    splits = [part.split for part in parts if part.split]
    names = dict.fromkeys(name for split in splits for name in split)
    split = {name: float(np.mean([split.get(name, 0.0) for split in splits])) for name in names}
    signals = (part.signal for part in parts if part.signal is not None)
    return Passed(steps, _proof(parts), slowest, split, next(signals, None))


def _proof(parts: Sequence[Passed]) -> Proof:
    """Return where the steps of all instances ran; those that made none do not count."""
    proofs = [part.proof for part in parts if part.steps] or [parts[0].proof]
    compile_seconds = [
        proof.compile_seconds for proof in proofs if proof.compile_seconds is not None
    ]

    def all_of(name: str) -> Any:
        values = dict.fromkeys(getattr(proof, name) for proof in proofs)
        return ", ".join(map(str, values)) if len(values) > 1 else next(iter(values))

    return dataclasses.replace(
        proofs[0],
        target=all_of("target"),
        device=all_of("device"),
        executable=all_of("executable"),
        compile_seconds=max(compile_seconds, default=None),
        evaluation_steps=sum(proof.evaluation_steps for proof in proofs),
    )


def _write(one_pass: Pass, folders: Sequence[Path], passed: Passed) -> Path:
    from cosmictagger.results import parts, write_files
    from cosmictagger.results.files import PREDICTIONS, with_image_size

    launch = one_pass.launch
    loaded = [parts.load(folder) for folder in folders]
    parts.join_predictions(loaded, launch.folder / PREDICTIONS)
    tally, candidates = parts.join(loaded)
    settings = {**one_pass.settings(), "instances": len(folders)}
    size, downsample = one_pass.events.stored_size, launch.config.data.downsample
    return write_files(
        launch.folder,
        tally,
        candidates.events(),
        passed.proof,
        with_image_size(settings, size, downsample),
        sys.stderr.isatty(),
    ).report
