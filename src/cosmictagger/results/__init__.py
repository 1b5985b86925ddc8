"""Result files of inference: predictions, event displays, curves and a report page."""
