"""The data loader, its read-ahead worker process, and saving its position in a data set."""
