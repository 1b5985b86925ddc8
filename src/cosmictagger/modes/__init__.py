"""The modes of a run: train, infer, evaluate, read events."""
