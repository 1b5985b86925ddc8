"""Modules that have other names in Python 2."""

import urllib.request

__all__ = ["urllib"]
