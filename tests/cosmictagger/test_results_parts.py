"""Parts of a pass, joined: the very files that one process writes, whoever had which events."""

import numpy as np
import pytest
import torch

from abele.storage import atomic
from cosmictagger.data.loader import Batch
from cosmictagger.errors import DataError
from cosmictagger.results import Collector, write_files, writer
from cosmictagger.results.tally import Candidates

pytestmark = pytest.mark.usefixtures("quick_pictures")

SIZE, RUN = (16, 32), (8, 16)


def batch(entries, label=True):
    """Events that depend on their numbers alone."""
    images, labels = [], []
    for entry in entries:
        random = torch.Generator().manual_seed(entry)
        images.append((3 * torch.rand(3, *RUN, generator=random)).floor())
        labels.append(torch.randint(0, 3, (3, *RUN), generator=random))
    ids = np.array([[1, 0, 100 + entry] for entry in entries])
    return Batch(torch.stack(images), torch.stack(labels) if label else None, list(entries), ids)


def particles(entry):
    """A neutrino in every second event."""
    kind = np.dtype([("pdg", "i4"), ("energy_init", "f8"), ("current_type", "i2")])
    return np.array([(14, 0.1 + entry / 3, 0)], kind) if entry % 2 else None


def add(collector, entries, label=True):
    events = batch(entries, label)
    random = [torch.Generator().manual_seed(1000 + entry) for entry in entries]
    planes = tuple(
        torch.stack([torch.randn(3, *RUN, generator=each) for each in random]) for _ in range(3)
    )
    # Events of one batch have one value: ties, whose order must not depend on the instances.
    rows = [{"Average/mIoU": (entry % 3) / 10, "plane0/x": np.pi * entry} for entry in entries]
    rows[0]["plane0/x"] = float("nan")
    collector.add(events, planes, rows if label else None, [particles(e) for e in entries])


def of_one_process(folder, count, most, label=True, size=2):
    with Collector(folder, SIZE, 1, most) as whole:
        for start in range(0, count, size):
            add(whole, range(start, min(start + size, count)), label)
    write_files(folder, whole.tally, whole.candidates.events(), {"mode": "CPU"}, {}, False)


def of_instances(folder, count, most, instances, label=True, size=2, owner=None):
    made = []
    for index in range(instances):
        place = folder / "parts" / str(index)
        with Collector(place, SIZE, 1, most) as collector:
            for number, start in enumerate(range(0, count, size)):
                if (owner or (lambda n: n % instances))(number) == index:
                    add(collector, range(start, min(start + size, count)), label)
        writer.save_part(writer.Part(place, collector.tally, collector.candidates))
        made.append(writer.load_part(place))
    writer.join_predictions(made, folder / "predictions.h5")
    tally, candidates = writer.join_parts(made)
    write_files(folder, tally, candidates.events(), {"mode": "CPU"}, {}, False)


def files(folder):
    results = [f for f in folder.rglob("*") if f.is_file() and "parts" not in f.parts]
    return {str(file.relative_to(folder)): file.read_bytes() for file in results}


@pytest.mark.parametrize(
    ("count", "most", "instances", "label"),
    [(12, 4, 2, True), (7, 3, 3, True), (3, 5, 4, True), (5, 0, 2, True), (9, 3, 2, False)],
)
def test_parts_make_the_files_of_one_process(tmp_path, count, most, instances, label):
    of_one_process(tmp_path / "one", count, most, label)
    of_instances(tmp_path / "many", count, most, instances, label)
    one, many = files(tmp_path / "one"), files(tmp_path / "many")
    assert one.keys() == many.keys()
    assert len(one) == min(most, count) + 3
    assert [name for name in one if one[name] != many[name]] == []


def test_whoever_has_the_batches(tmp_path):
    owners = np.random.default_rng(3).integers(0, 3, 9)
    of_one_process(tmp_path / "one", 17, 6)
    of_instances(tmp_path / "many", 17, 6, 3, owner=lambda number: owners[number])
    assert files(tmp_path / "one") == files(tmp_path / "many")


def test_an_event_in_two_parts_is_refused(tmp_path):
    with pytest.raises(DataError, match="Event 0 is in two parts of"):
        of_instances(tmp_path, 2, 1, 2, owner=lambda number: Twice())


class Twice:
    """Equal to the number of every instance."""

    def __eq__(self, other):
        return True

    __hash__ = None


def test_a_failure_while_joining_leaves_parts_and_older_predictions(tmp_path, monkeypatch):
    of_instances(tmp_path, 4, 1, 2)
    before = files(tmp_path)
    kept = {file: file.read_bytes() for file in (tmp_path / "parts").rglob("*") if file.is_file()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cosmictagger.data.larcv.os.posix_fallocate", full)
    made = [writer.load_part(tmp_path / "parts" / str(index)) for index in range(2)]
    with pytest.raises(DataError, match="No space left on device"):
        writer.join_predictions(made, tmp_path / "predictions.h5")
    assert files(tmp_path) == before
    assert {file: file.read_bytes() for file in kept} == kept


def test_a_part_is_complete_or_not_there(tmp_path, monkeypatch):
    with Collector(tmp_path, SIZE, 1, 2) as collector:
        add(collector, range(2))
    monkeypatch.setattr(atomic, "write_text", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        writer.save_part(writer.Part(tmp_path, collector.tally, collector.candidates))
    with pytest.raises(DataError, match=r"The part of a pass in .* cannot be read.*Delete"):
        writer.load_part(tmp_path)


def test_candidates_of_events_without_labels_are_the_first():
    candidates = Candidates(2)
    assert candidates.wants(labelled=False)
    assert Candidates(0).wants(labelled=True)
    assert not Candidates(0).wants(labelled=False)
