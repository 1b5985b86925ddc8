"""How good a prediction is: the loss that trains it, and metrics."""
