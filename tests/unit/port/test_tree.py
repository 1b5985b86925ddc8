"""Walking through syntax trees: the same nodes as libcst's own way, in the same order."""

from pathlib import Path

import libcst as cst
import pytest

from abele.port import tree
from abele.port.source import Source

PROGRAMS = Path(__file__).parent / "programs"

EVERYTHING = '''
import a, b as c
from . import (d, e as f,)
global_ = lambda x, /, y=1, *args, z: (yield x)
@decorated
async def g(x: int, *, k: str = "a" "b", **rest) -> list[int]:
    async for i in x:
        await y(*i, **rest)
    else:
        del i
    async with p as q, r:
        return [i async for i in x if i if not x]
class C(A, metaclass=M):
    """Text."""
    x: int = 1
    y += (2, [3, *z], {4}, {5: 6, **w}, x[1:2, ...])
try:
    raise E from F
except* (G, H) as error:
    assert error, f"{error!r:>{10}} {1 < 2 <= 3}"
finally:
    while (n := not 0 if n else ~1): break
try: pass
except: pass
match p:
    case {"a": 1, **rest} if rest: nonlocal_ = {k: v for k, v in rest}
    case ([C(x=1), *_] | 1 | None) as one: print(one @ 2 ** 3j, 1.5)
    case _: pass
'''


@pytest.mark.parametrize("text", [EVERYTHING, (PROGRAMS / "pairs.py").read_text()])
def test_children_are_those_of_libcst_in_the_order_of_the_text(text):
    rest: list[cst.CSTNode] = [Source("a.py", text).module]
    seen = 0
    while rest:
        node = rest.pop()
        assert tree.children(node) == list(node.children)
        rest += node.children
        seen += 1
    assert seen > 300


def test_the_parent_of_each_node_has_it_among_its_children():
    module = Source("a.py", EVERYTHING).module
    parents = tree.parents(module)
    assert module not in parents
    assert len(parents) > 300
    assert all(any(each is node for each in above.children) for node, above in parents.items())


class Visits(cst.CSTVisitor):
    """Notes each node that is visited or left, and goes into no call and no assignment."""

    def __init__(self):
        super().__init__()
        self.order = []

    def on_visit(self, node):
        self.order.append((True, node))
        return super().on_visit(node)

    def on_leave(self, original_node):
        self.order.append((False, original_node))
        super().on_leave(original_node)

    def visit_Call(self, node):
        return False

    def visit_Assign(self, node):
        return False


def test_visitors_see_what_libcst_shows_them():
    module = Source("a.py", EVERYTHING).module
    ours, theirs = Visits(), Visits()
    tree.visit(module, ours)
    module.visit(theirs)
    assert len(ours.order) > 300
    assert ours.order == theirs.order
