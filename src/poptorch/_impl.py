"""Where the original keeps the wrapping of modules; published trainers name these two functions."""

from poptorch._weights import rewrapModelIfNecessary, unwrapModelIfNecessary

__all__ = ["rewrapModelIfNecessary", "unwrapModelIfNecessary"]
