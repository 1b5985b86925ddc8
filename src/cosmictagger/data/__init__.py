"""Event data: files, the built-in generator, and loaders of batches."""
