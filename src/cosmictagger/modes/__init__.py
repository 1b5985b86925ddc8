"""The modes of a run: train, infer, read events."""
