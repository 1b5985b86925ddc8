"""Memory of programs that torch's operators run: planned places in one piece of memory.

``places.placed`` plans where every tensor of a program lies; ``Arena`` has torch take them there.
"""

from abele.arena.places import LEAST, placed
from abele.arena.running import Arena, available, made

__all__ = ["LEAST", "Arena", "available", "made", "placed"]
