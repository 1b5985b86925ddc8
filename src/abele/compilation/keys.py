"""Keys of executables: the inputs of code generation as JSON values and as a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from abele.compilation.executable import ChosenLowering, lowerings_of
from abele.containers import is_dict
from abele.program import Program
from abele.step.config import StepConfig
from abele.targets import Target, candidates

# 1 did not say how its programs were lowered, and was no container. Code of 2 that one thread had
# compiled ran wrongly in several. 3 was found by programs that had been lowered. 4 had never been
# compared with interpreted programs where its first call waited, and its key lacked strides.
FORMAT = 5
#: Derived key parts, which are not hashed: they follow from the others, and a stored executable has
#: them.
FOLLOWS = ("lowerings", "reasons", "declined")


def key_parts(
    programs: Sequence[Program],
    config: StepConfig,
    target: Target,
    lowerings: Mapping[str, str | Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Return the inputs of code generation as JSON values.

    An executable is found by this key before any code is generated, so the key has all inputs of
    code generation: fingerprints of the programs; abele's code-generating sources; the machine as
    the target describes it, with torch and the kernel library; the compiler.
    A variable of the environment counts by what it changes: ``CXX`` by the compiler,
    ``ATEN_CPU_CAPABILITY`` by the target's capability, ``ABELE_LOWERING`` as asked, and options by
    the programs and the configuration. The number of threads changes no code.

    How programs are lowered follows from that. Which of several lowerings is the fastest does not:
    it is found when they are compiled, and is in the executable.
    """
    parts: dict[str, Any] = {
        "format": FORMAT,
        "programs": {program.name: program.fingerprint() for program in programs},
        "config": config.compile_fields(),
        "target": target.describe(),
        "toolchain": target.toolchain(),
        "choice": candidates.decided_by(target, measured=config.processes == 1),
    }
    if lowerings is not None:
        parts["lowerings"] = dict(lowerings)
    return json.loads(json.dumps(parts, sort_keys=True))


def key_of(parts: Mapping[str, Any]) -> str:
    """Return the hash of an executable's key parts, which names its file."""
    return hashlib.sha256(json.dumps(_deciding(parts), sort_keys=True).encode()).hexdigest()


def _deciding(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in parts.items() if name not in FOLLOWS}


def following(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the derived key parts: compiler, lowerings and the reasons for them."""
    return {name: parts[name] for name in (*FOLLOWS, "toolchain") if name in parts}


def reasons_of(parts: Mapping[str, Any], name: str) -> ChosenLowering:
    """Return the first candidate lowering of a program, and why it was chosen."""
    reasons = parts.get("reasons", {})
    return ChosenLowering(name=lowerings_of(parts, name)[0], reason=str(reasons.get(name, "")))


def differences(
    stored: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """List names and values of the key parts in which two executables differ."""
    lines: list[str] = []
    for name in sorted({*stored, *wanted}):
        old, new = stored.get(name), wanted.get(name)
        if is_dict(old) and is_dict(new):
            lines += differences(old, new, f"{prefix}{name}.")
        elif old != new:
            lines.append(f"{prefix}{name}: {_short(old)} there, {_short(new)} here")
    return lines


def why_parts_differ(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return the differing key parts of two executables, derived ones only if no others differ."""
    deciding = differences(_deciding(stored), _deciding(wanted))
    return deciding or differences(stored, wanted)


def why_other(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Explain how a stored executable's key differs from the wanted one; empty if it does not."""
    if stored.get("format") != wanted["format"]:  # what else differs follows from that
        return (
            f"executables of layout {stored.get('format')} are not read any more, "
            f"only those of layout {wanted['format']}"
        )
    stored, wanted = _deciding(stored), _deciding(wanted)
    # Code of another compiler runs here as well: it is compared before its results are used.
    stored["toolchain"] = wanted.get("toolchain", "")
    if stored["target"]["target"] != wanted["target"]["target"]:  # each has a choice of its own
        stored["choice"] = wanted["choice"]
    return "; ".join(differences(stored, wanted))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
