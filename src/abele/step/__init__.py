"""The definition of a training step: batch arithmetic, optimizers, gradient reduction."""
