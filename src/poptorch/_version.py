"""The version string that programs compare: PopTorch's version, followed by abele's."""

from abele.version import __version__ as _engine

__version__ = f"3.4.0+abele-{_engine}"
