"""Memory planning of programs run by torch: tensors at planned offsets of one buffer.

``places.planned`` places the tensors of a program, ``Arena`` has torch allocate them there, and
``measured.with_inner`` tells estimates of memory what operators allocate inside.
"""

from abele.arena.measured import is_measured, with_inner
from abele.arena.places import Places, placed, planned
from abele.arena.running import NAME, Arena, available, made, makings, release

__all__ = [
    "NAME",
    "Arena",
    "Places",
    "available",
    "is_measured",
    "made",
    "makings",
    "placed",
    "planned",
    "release",
    "with_inner",
]
