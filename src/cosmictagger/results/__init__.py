"""Files of an inference pass: predictions, event displays, curves and a report page."""
