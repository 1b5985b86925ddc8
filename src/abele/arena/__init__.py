"""Memory of programs that torch's operators run: planned places in one piece of memory.

``inner.with_inner`` knows what operators make inside, ``places.placed`` plans where every tensor of
a program lies, and ``Arena`` has torch take them there.
"""

from abele.arena.inner import is_known, with_inner
from abele.arena.places import LEAST, Places, placed, planned
from abele.arena.running import NAME, Arena, available, made, makings

__all__ = [
    "LEAST",
    "NAME",
    "Arena",
    "Places",
    "available",
    "is_known",
    "made",
    "makings",
    "placed",
    "planned",
    "with_inner",
]
