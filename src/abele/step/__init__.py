"""The definition of a step: batch arithmetic, optimizer, reduction of gradients."""
