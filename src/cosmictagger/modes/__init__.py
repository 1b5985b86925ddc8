"""What a run does: train, infer, evaluate, read events."""
