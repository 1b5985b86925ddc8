"""The version of the distribution; read by the build without importing torch."""

__version__ = "1.0.0rc1"
