"""Older versions of torch are refused, newer ones tried, with what their self-checks pass."""

import contextlib
import importlib
import json
import os
import subprocess
import sys

import pytest
import torch

from abele import _torch
from abele._torch import checks, contexts, copies, dynamo, graphs, versions
from abele.compilation import build
from abele.errors import TargetError, TorchVersionError, TorchVersionWarning
from helpers.warm_python import python

NEWER = "9.1.0a0+git1234"

_TRAINED = """
import json, sys, warnings
import torch

torch.__version__ = sys.argv[1]
exec(sys.argv[2])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import poptorch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.0))
        def forward(self, x, y):
            return torch.nn.functional.cross_entropy(self.layers(x).relu_(), y)

    torch.manual_seed(1)
    net = Net()
    options = poptorch.Options().showCompilationProgressBar(False)
    training = poptorch.trainingModel(net, options, torch.optim.Adam(net.parameters(), lr=0.1))
    x, y = torch.randn(8, 4), torch.arange(8) % 4
    losses = [training(x, y).item() for _ in range(3)]
print(json.dumps([losses, [[each.category.__name__, str(each.message)] for each in caught]]))
"""


def _trained(version, breaks="", target="reference"):
    told = {"ABELE_START": "wait", "ABELE_TARGET": target, "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **told}
    # Nothing but the version of this torch is known of what a warm Python has loaded.
    interpreter = sys.executable if version == NEWER or breaks else python()
    return subprocess.run(
        [interpreter, "-W", "ignore", "-c", _TRAINED, version, breaks],
        env={name: value for name, value in environment.items() if value},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _result(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def newer(monkeypatch):
    """Let this process take its torch for one that nobody has tried."""
    monkeypatch.setattr(torch, "__version__", NEWER)
    monkeypatch.setattr(versions, "tried", False)
    checks.failed.cache_clear()
    yield monkeypatch
    checks.failed.cache_clear()


def test_a_newer_torch_computes_the_same_with_one_warning():
    expected, silent = _result(_trained(torch.__version__))
    losses, warned = _result(_trained(NEWER))
    assert losses == expected
    assert silent == []
    assert [category for category, _ in warned] == ["TorchVersionWarning"]
    assert f"torch {NEWER} is newer than abele was tried with (2.13 to " in warned[0][1]


def test_a_newer_torch_without_a_name_that_captures_import_is_refused():
    breaks = "from torch.fx.experimental import proxy_tensor; del proxy_tensor.get_proxy_slot"
    done = _trained(NEWER, breaks)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "TorchVersionError: torch 9.1.0a0+git1234 is newer" in last
    assert "cannot import name 'get_proxy_slot'" in last
    assert f"Run: pip install torch=={versions.SUPPORTED[-1]}.0" in last


@pytest.mark.long
def test_a_newer_torch_may_lack_what_few_programs_need():
    breaks = (
        "from torch.nn.modules import transformer; del transformer._detect_is_causal_mask\n"
        "del torch.distributions.Distribution._validate_args"
    )
    losses, warned = _result(_trained(NEWER, breaks))
    assert losses == _result(_trained(torch.__version__))[0]
    assert len(warned) == 1
    done = _trained(torch.__version__, breaks)
    assert done.returncode == 1
    assert "AttributeError" in done.stderr


@pytest.mark.long
def test_a_newer_torch_that_fails_a_self_check_of_compiled_code_is_interpreted():
    breaks = (
        "from abele._torch import checks\n"
        "checks.CHECKS['compiled code'] = [('divisions', lambda: 1 / 0)]"
    )
    losses, warned = _result(_trained(NEWER, breaks, target=""))
    assert losses == _result(_trained(torch.__version__))[0]
    ((category, text),) = warned
    assert category == "FallbackWarning"
    assert "Running on the slower 'reference' target. torch 9.1.0a0+git1234 is new" in text
    assert "divisions (ZeroDivisionError: division by zero)" in text


def test_a_forced_target_is_refused_where_a_self_check_fails(newer):
    newer.setitem(checks.CHECKS, "compiled code", [("lies", lambda: False)])
    with pytest.raises(TargetError, match="is new and fails a self-check of abele"):
        build.build((), None, target=build.get_target("cpu"))


def test_older_versions_are_refused(newer):
    newer.setattr(torch, "__version__", "2.9.1")
    with pytest.raises(TorchVersionError, match=r"needs torch 2\.13 or newer, found 2\.9\.1"):
        versions.require()


def test_newer_ones_are_accepted_with_a_typed_warning(newer):
    with pytest.warns(TorchVersionWarning, match="newer than abele was tried with"):
        versions.require()


@pytest.mark.filterwarnings("error")
def test_nothing_is_said_or_checked_of_versions_that_were_tried(monkeypatch):
    monkeypatch.setitem(checks.CHECKS, "capture", [("lies", lambda: False)])
    checks.failed.cache_clear()
    versions.require()
    checks.require_capture()
    assert checks.why_not_compiled() is None


def test_self_checks_pass_and_run_once(newer):
    ran = []
    counting = ("counted", lambda: ran.append(1) is None)
    newer.setitem(checks.CHECKS, "capture", [counting, *checks.CHECKS["capture"]])
    for _ in range(2):
        checks.require_capture()
        assert checks.why_not_compiled() is None
    assert ran == [1]


class Real:
    """A mode without tensors that have no data."""

    def from_tensor(self, tensor):
        return tensor


# What torch may change, by the self-check that has to notice.
CHANGES = {
    "names of operators": (_torch, "schema_of", lambda operator: torch.ops.aten.mul.Tensor._schema),
    "kernels of operators": (_torch, "kernel_of", lambda operator: torch.sub),
    "lists of hooks": (contexts, "around_step", lambda optimizer: []),
    "settings of oneDNN": (_torch, "without_onednn", contextlib.nullcontext),
    "refused values": (_torch, "static_fakes", lambda: Real()),
    "traced programs": (_torch, "traced_node", lambda tensor: None),
}


@pytest.mark.parametrize("check", CHANGES)
def test_a_self_check_notices_what_has_changed(newer, check):
    newer.setattr(*CHANGES[check])
    with pytest.raises(TorchVersionError, match=f"capture of programs needs: {check}"):
        checks.require_capture()


def test_a_self_check_notices_another_convolution(newer):
    if _torch.convolution_with_activation() is None:
        pytest.skip("this torch has no oneDNN")
    newer.setattr(_torch, "convolution_with_activation", lambda: lambda *_: torch.zeros(1, 1, 3, 3))
    assert "convolutions with activation differ" in checks.why_not_compiled()


def test_a_self_check_notices_another_linear_layer(newer):
    if _torch.linear_with_bias() is None:
        pytest.skip("this torch has no oneDNN")
    newer.setattr(_torch, "linear_with_bias", lambda: lambda *_: torch.zeros(1, 1))
    assert "linear layers with bias differ" in checks.why_not_compiled()


def test_every_self_check_has_a_test_here():
    assert {name for name, _ in checks.CHECKS["capture"]} == set(CHANGES)


def test_a_name_that_is_gone_from_a_tried_version_is_an_error_of_its_own():
    with pytest.raises(ImportError, match="ghost") as raised, versions.imported():
        importlib.import_module("torch.ghost")
    assert not isinstance(raised.value, TorchVersionError)


def test_optional_contexts_do_nothing_without_their_names(newer):
    @versions.optional
    @contextlib.contextmanager
    def patched():
        yield torch.a_name_that_is_gone

    with patched():
        pass
    with pytest.raises(AttributeError, match="of the caller"), patched():
        raise AttributeError("of the caller")
    newer.setattr(versions, "tried", True)
    with pytest.raises(AttributeError, match="a_name_that_is_gone"), patched():
        pass


def test_newer_versions_get_no_shortcuts(newer):
    newer.setattr(graphs, "_shortcuts", None)
    with _torch.static_fakes() as mode:
        fake = mode.from_tensor(torch.ones(2))
        graph = _torch.graph_of(lambda x: [x.sin()], [fake])
    assert torch.equal(graph(torch.zeros(2))[0], torch.zeros(2))
    newer.setattr(dynamo, "_DEFINING", ("torch.ghost",))
    newer.delitem(sys.modules, "torch._dynamo", raising=False)
    dynamo.load_when_needed()
    copied = copies.copied_graph(graph.graph)
    (sine,) = copied.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    with copied.inserting_after(sine):
        again = copies.copied_node(copied, sine, lambda node: node, {"val": 1})
        other = copies.new_call(copied, torch.ops.aten.cos.default, (sine,), {"val": 2})
    copied.lint()
    assert (again.target, again.meta, other.meta) == (sine.target, {"val": 1}, {"val": 2})
    assert copies.called_targets(copied) == [sine.target, torch.ops.aten.cos.default]
