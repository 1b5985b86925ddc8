"""Arguments and results of a call: nested containers of tensors and constants."""
