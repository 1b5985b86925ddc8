"""Containers whose contents were changed and given right checksums, as no damage can."""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

#: A value of each type that JSON has.
OTHERS: tuple[Any, ...] = (None, True, -7, 2.5, "no such name", [], ["x"], {}, {"x": [1]})
_MANIFEST = "manifest.json"


def members(path: Path) -> dict[str, bytes]:
    """The members of a container by name, the manifest among them."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path: Path, content: dict[str, bytes]) -> None:
    """Write a container with these members; checksums in the manifest are put right."""
    try:
        manifest = json.loads(content[_MANIFEST])
        for name, entry in manifest["members"].items():
            entry["sha256"] = hashlib.sha256(content[name]).hexdigest()
        content = {**content, _MANIFEST: json.dumps(manifest).encode()}
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # nothing is left to put right
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def variants(data: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """JSON data with one of its values replaced by one of another type, for each; named."""
    for other in OTHERS:
        if type(other) is not type(data) or (isinstance(data, list | dict) and data and not other):
            yield f"{name} = {other!r}", other
    parts = data.items() if isinstance(data, dict) else enumerate(data) if _is_list(data) else ()
    for key, part in parts:
        for changed, value in variants(part, f"{name}.{key}"):
            copied: Any = data.copy()
            copied[key] = value
            yield changed, copied
        if isinstance(data, dict):
            yield f"{name} without {key}", {k: v for k, v in data.items() if k != key}


def _is_list(data: Any) -> bool:
    return isinstance(data, list)


def manifests(path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """What a manifest may have become, named, with a function that writes the file so."""
    sound = members(path)
    for name, manifest in variants(json.loads(sound[_MANIFEST])):
        text = json.dumps(manifest).encode()

        def put(text: bytes = text) -> None:
            write(path, {**sound, _MANIFEST: text})

        yield name, put
