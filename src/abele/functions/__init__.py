"""``abele.compile``: functions of plain PyTorch as static programs."""
