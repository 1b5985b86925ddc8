"""Each private name of ``_torch/contexts.py`` exists and does what we rely on."""

import ast
import inspect
from pathlib import Path

import torch
from torch.nn.modules.module import (
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from abele._torch import contexts


def first(*_):
    """A hook."""


def second(*_):
    """Another hook."""


def test_every_name_is_tested_here():
    tree = ast.parse(Path(inspect.getfile(contexts)).read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    others = Path(__file__).with_name("test_torch_names.py")
    here = Path(__file__).read_text() + others.read_text()
    assert {name for name in names if not name.startswith("_") and name not in here} == set()


def test_hooks_of_a_parameter():
    parameter = torch.nn.Parameter(torch.ones(2))
    assert contexts.of_gradient(parameter) == []
    assert contexts.after_accumulation(parameter) == []
    parameter.register_hook(first)
    parameter.register_post_accumulate_grad_hook(second)
    assert contexts.of_gradient(parameter) == [first]
    assert contexts.after_accumulation(parameter) == [second]


def test_hooks_of_a_module():
    module = torch.nn.Linear(2, 2)
    module.register_full_backward_pre_hook(first)
    module.register_full_backward_hook(second)
    before, after = contexts.of_backward(module)
    assert (list(before.values()), list(after.values())) == ([first], [second])
    handles = [
        register_module_full_backward_pre_hook(first),
        register_module_full_backward_hook(second),
    ]
    assert contexts.of_every_backward() == [first, second]
    for handle in handles:
        handle.remove()


def test_hooks_of_an_optimizer():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    others = contexts.around_step(optimizer)  # front-ends watch all steps
    optimizer.register_step_pre_hook(first)
    optimizer.register_step_post_hook(second)
    handles = [register_optimizer_step_pre_hook(first), register_optimizer_step_post_hook(second)]
    output = [hook for hook in contexts.around_step(optimizer) if hook not in others]
    assert output == [first, second, first, second]
    for handle in handles:
        handle.remove()


def test_writes_are_counted():
    tensor = torch.ones(2)
    before = contexts.writes(tensor)
    tensor.add_(1)
    assert contexts.writes(tensor) == before + 1


def test_a_worker_that_has_ended_is_noticed():
    loader = torch.utils.data.DataLoader(torch.arange(8), num_workers=2, persistent_workers=True)
    batches = iter(loader)
    assert not contexts.has_lost_worker(batches)
    batches._workers[1].kill()
    batches._workers[1].join()
    assert contexts.has_lost_worker(batches)
