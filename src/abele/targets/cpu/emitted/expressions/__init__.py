"""Elementwise operators as expressions of C++."""

from __future__ import annotations

from typing import Any

from abele.targets.cpu.emitted.expressions import activations, arithmetic, choices
from abele.targets.cpu.emitted.pointwise import Rule

RULES: dict[Any, Rule] = {**activations.RULES, **arithmetic.RULES, **choices.RULES}
