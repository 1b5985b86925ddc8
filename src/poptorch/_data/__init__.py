"""The data loader, its process that reads ahead, and its position."""
