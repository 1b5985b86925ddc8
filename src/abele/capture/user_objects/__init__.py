"""The user's own objects: which tensors forward finds in them, and which it leaves there."""
