"""Whether a wrapped model fits into a memory, and what would make it fit."""
