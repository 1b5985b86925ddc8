"""Graphs of modules: which values pass between which steps, and where these are drawn."""

import itertools
import random

import pytest
import torch

from abele.report.flow import OUTSIDE, Passage, Read, steps_of
from abele.report.operators import passages
from abele.report.page.modules import MOST, graph, layered, modules
from helpers.reported import run_of
from helpers.runs import captured


class Block(torch.nn.Module):
    """Adds its input to what two layers make of it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(x)))


class Model(torch.nn.Module):
    """Two blocks of a list, with a product between, and one of them again."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x, y):
        x = self.blocks[1](2 * self.blocks[0](x))
        return (self.blocks[0](3 * x) * y).mean()


@pytest.fixture(scope="module")
def row():
    batch = [torch.ones(2, 4), torch.ones(2, 4)]
    return passages(captured(Model(), batch).programs[0])


def read_from(steps):
    return [sorted(step.reads) for step in steps]


def test_values_pass_from_step_to_step_and_a_module_called_twice_is_there_twice(row):
    steps = steps_of(row, "")
    names = [step.name for step in steps]
    assert names == ["blocks/0", "", "blocks/1", "", "blocks/0", ""]
    assert read_from(steps) == [[OUTSIDE], [0], [1], [2], [3], [OUTSIDE, 4]]
    (read,) = steps[1].reads[0]
    assert (read.bytes, read.type) == (2 * 4 * 4, "f32[2, 4]")


def test_inside_of_a_module_its_input_passes_both_layers(row):
    steps = steps_of(row, "blocks/1")
    assert [step.name for step in steps] == ["first", "", "second", ""]
    assert read_from(steps) == [[OUTSIDE], [0], [1], [OUTSIDE, 2]]
    assert [step.leaves for step in steps] == [False, False, False, True]


def test_every_operation_of_forward_is_in_one_step(row):
    for module in ("", "blocks/0"):
        inside = [each for each in row if each.module.startswith(module)]
        assert sum(step.count for step in steps_of(row, module)) == sum(e.count for e in inside)


def test_the_graph_has_a_box_for_each_step_that_leads_to_its_module(row):
    text = graph(row, "", {"blocks/1": "12 %"})
    assert text is not None
    assert text.count('href="#module:blocks/0"') == 2
    assert text.count('href="#module:blocks/1"') == 1
    assert ">12 %</text>" in text
    assert "blocks.0 to mul: f32[2, 4] (32 B)" in text


def test_one_step_has_no_graph_and_very_many_are_said():
    one = Passage(module="a", operators=("x",), count=1)
    assert graph([one], "", {}) is None
    many = [Passage(module=f"m{i}", operators=("x",), count=1) for i in range(MOST + 1)]
    assert f"{MOST + 1} steps here, too many to be drawn" in str(graph(many, "", {}))


def test_links_of_the_page_lead_somewhere():
    run = run_of("introduction")
    text = str(modules(run))
    for module in ("conv1", "fc2"):
        assert f'href="#module:{module}"' in text
        assert f'id="module:{module}"' in text


def test_names_that_look_like_markup_are_text():
    name = '"><script>'
    row = [
        Passage(module=name, operators=(name,), count=1),
        Passage(module="b", operators=(), count=1, reads=(Read(passage=0, bytes=1, type=name),)),
    ]
    assert "<script" not in str(graph(row, "", {name: name}))


# -- where it is drawn ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_nodes_are_below_what_they_read_and_nothing_overlaps(seed):
    draw = random.Random(seed)
    count = draw.randint(2, 40)
    widths = [draw.uniform(40, 200) for _ in range(count)]
    edges = list(
        {(draw.randrange(end), end) for end in range(1, count) for _ in range(draw.randint(0, 3))}
    )
    layout = layered(widths, edges)
    assert all(layout.layer[begin] < layout.layer[end] for begin, end in edges)
    for edge, way in layout.ways.items():
        assert len(way) == layout.layer[edge[1]] - layout.layer[edge[0]] - 1
    for layer in range(layout.layers):
        spans = [
            (layout.centers[i] - widths[i] / 2, layout.centers[i] + widths[i] / 2)
            for i in range(count)
            if layout.layer[i] == layer
        ]
        bends = [
            way[layer - layout.layer[begin] - 1]
            for (begin, end), way in layout.ways.items()
            if layout.layer[begin] < layer < layout.layer[end]
        ]
        spans = sorted([*spans, *((at, at) for at in bends)])
        assert spans[0][0] > -1e-6
        assert spans[-1][1] < layout.width + 1e-6
        assert all(left[1] < right[0] for left, right in itertools.pairwise(spans))


def test_a_row_of_nodes_is_straight_and_what_passes_it_bends():
    layout = layered([100.0] * 5, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
    assert len(set(layout.centers)) == 1
    assert all(abs(at - layout.centers[0]) > 50 for at in layout.ways[0, 4])
