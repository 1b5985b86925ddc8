"""Programs: what they are, how they are printed, and what can be read off their graphs."""

from abele.program.core import (
    Check,
    Program,
    Role,
    Slot,
    Stamp,
    all_nodes,
    declare_effect,
    has_effect,
    identifier,
    is_getitem,
    is_view,
    node_argument,
    output_node,
    returned_nodes,
    subgraphs,
    writes,
)

__all__ = [
    "Check",
    "Program",
    "Role",
    "Slot",
    "Stamp",
    "all_nodes",
    "declare_effect",
    "has_effect",
    "identifier",
    "is_getitem",
    "is_view",
    "node_argument",
    "output_node",
    "returned_nodes",
    "subgraphs",
    "writes",
]
