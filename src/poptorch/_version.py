"""The version that programs compare: the interface's, with the engine's behind it."""

from abele.version import __version__ as _engine

__version__ = f"3.4.0+abele-{_engine}"
