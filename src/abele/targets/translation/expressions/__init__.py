"""Elementwise operators as expressions of C++."""

from __future__ import annotations

from typing import Any

from abele.targets.translation.expressions import activations, arithmetic, choices
from abele.targets.translation.pointwise import Rule

RULES: dict[Any, Rule] = {**activations.RULES, **arithmetic.RULES, **choices.RULES}
