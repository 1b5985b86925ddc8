"""What one training step does: its numbers, its optimizer, how gradients become one update."""
