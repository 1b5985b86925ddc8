"""CosmicTagger: labels every pixel of liquid-argon images as background, cosmic or neutrino.

The compute device is an option of the run; the model, the loss and the loop do not know it.
"""

from abele.version import __version__

__all__ = ["__version__"]
