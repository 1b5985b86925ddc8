"""``torch.compile(model, backend="abele")``: graphs of Dynamo as programs.

torch finds ``backend`` through its entry-point group ``torch_dynamo_backends``.
"""

from abele.dynamo.entry import backend
from abele.dynamo.running import Graph, graphs

__all__ = ["Graph", "backend", "graphs"]
