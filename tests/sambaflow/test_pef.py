"""A compiled file fits exactly what was compiled, and anything else is a clear error."""

import json
import zipfile

import pytest
import torch

from abele import get_target
from abele.compilation.portable_executable import RecompiledWarning
from helpers.samba_models import Dense, Net, named, rows
from sambaflow import samba
from sambaflow.errors import GraphError, PefDamagedError, PefMismatchError, UsageError
from sambaflow.samba.utils.pef_utils import get_pefmeta_dict

PEF = "out/dense/dense.pef"
WHERE = {"output_folder": "out", "pef_name": "dense", "learning_rate": 0.5}


def sgd(model, **values):
    return samba.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **values})


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """One file for all tests of this module, which only read it."""
    folder = tmp_path_factory.mktemp("pef")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABELE_TARGET", "reference")
        patch.chdir(folder)
        model = samba.from_torch_model_(Dense())
        samba.session.compile(
            model,
            named(rows(0)),
            sgd(model),
            name="dense",
            config_dict=WHERE,
            pef_metadata={"made_by": "a test"},
        )
    return folder


@pytest.fixture
def pef(stored, monkeypatch):
    monkeypatch.chdir(stored)
    return PEF


def trace(pef, model=None, inputs=None, optimizer="sgd", **settings):
    model = model or samba.from_torch_model_(Dense())
    optimizer = sgd(model) if optimizer == "sgd" else optimizer and optimizer(model)
    return samba.utils.trace_graph(model, inputs or named(rows(0)), optimizer, pef=pef, **settings)


def test_it_lies_where_the_options_say_with_its_log(pef, stored):
    assert {path.name for path in (stored / "out" / "dense").iterdir()} == {
        "dense.pef",
        "dense.samba.log",
    }
    assert "def step(" in (stored / "out" / "dense" / "dense.samba.log").read_text()


def test_it_says_what_it_is(pef):
    result = get_pefmeta_dict(pef)
    assert result["made_by"] == "a test"
    assert result["name"] == "dense"
    assert result["target"] == "reference"
    assert result["programs"] == ["step", "forward", "backward", "update"]
    assert result["config"]["learning_rate"] == "0.5"
    assert [each["name"] for each in result["inputs"]] == ["image", "label"]


def test_nothing_in_it_is_pickled(pef):
    with zipfile.ZipFile(pef) as archive:
        assert json.loads(archive.read("manifest.json"))["kind"] == "sambaflow PEF"
        assert not [name for name in archive.namelist() if name.endswith((".pkl", ".pickle"))]


def test_loading_says_the_target(pef, capsys):
    trace(pef)
    assert "runs on target 'reference', device cpu, interpreted" in capsys.readouterr().out
    report = samba.session.report
    assert (report.target, report.origin) == ("reference", "interpreted")
    assert report.programs == ("step", "forward", "backward", "update")


class Wider(Dense):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 3)


class Deeper(Dense):
    def __init__(self):
        super().__init__()
        self.second = torch.nn.Linear(3, 3)


class Negated(Dense):
    def forward(self, x, y):
        return super().forward(-x, y)


def frozen():
    model = Dense()
    model.layer.bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Wider, r"parameter layer.weight: compiled as \[3, 5\] torch.float32, given \[3, 6\]"),
        (Deeper, "parameter second.weight: compiled as missing, given"),
        (lambda: Dense().bfloat16(), "given .* torch.bfloat16"),
        (frozen, r"parameters without gradient: compiled as \[\], given \['layer.bias'\]"),
        (lambda: Dense().eval(), "model.training: compiled as True, given False"),
        (Net, "parameter layer.weight: .*\n.*parameter layer.bias|conv.weight"),
    ],
)
def test_another_model(pef, make, text):
    with pytest.raises(PefMismatchError, match=text):
        trace(pef, samba.from_torch_model_(make()))


def test_another_forward_of_the_same_weights(pef):
    with pytest.raises(PefMismatchError, match=r"compiled for another forward .*program step"):
        trace(pef, samba.from_torch_model_(Negated()))


@pytest.mark.parametrize(
    ("names", "change", "text"),
    [
        (("image", "target"), None, "inputs: compiled as image, label, given image, target"),
        (("label", "image"), None, "given label, image"),
        (None, lambda x, y: (x[:2], y[:2]), r"input image: compiled as \[4, 5\] .* given \[2, 5\]"),
        (None, lambda x, y: (x.double(), y), "given .* torch.float64"),
        (None, lambda x, y: (x,), "inputs: compiled as image, label, given image"),
    ],
)
def test_other_inputs(pef, names, change, text):
    tensors = rows(0) if change is None else change(*rows(0))
    with pytest.raises(PefMismatchError, match=text):
        trace(pef, inputs=named(tensors, names or ("image", "label")))


@pytest.mark.parametrize(
    ("optimizer", "text"),
    [
        (None, "optimizer: compiled as sgd .*, given none, for inference"),
        (lambda m: samba.optim.Adam(m.parameters()), "optimizer: compiled as sgd .* given adam"),
        (lambda m: sgd(m, momentum=0.0), "momentum of .*: compiled as set at each run, given 0.0"),
        (lambda m: sgd(m, max_grad_norm=1.0), "max_grad_norm: compiled as inf, given 1.0"),
        (
            lambda m: torch.optim.SGD([m.layer.weight], lr=0.1, momentum=0.9),
            "parameters of optimizer group 0: compiled as layer.weight, layer.bias, given",
        ),
        (
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
            "nesterov of optimizer group 0: compiled as False, given True",
        ),
    ],
)
def test_another_optimizer(pef, optimizer, text):
    with pytest.raises(PefMismatchError, match=text):
        trace(pef, optimizer=optimizer)


def test_other_losses(pef):
    with pytest.raises(PefMismatchError, match=r"loss_indices: compiled as None, given \[1\]"):
        trace(pef, loss_indices=[1])


def test_another_rate_is_no_mismatch(pef):
    trace(pef, optimizer=lambda m: sgd(m, lr=7.0, weight_decay=0.1))


def test_no_file(pef):
    with pytest.raises(PefDamagedError, match=r"There is no PEF file out/other.pef .*Compile"):
        trace("out/other.pef")
    with pytest.raises(PefDamagedError, match=r"No PEF file was given"):
        trace("")
    with pytest.raises(PefDamagedError, match=r"There is no PEF file out"):
        trace("out")


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_cut_file(pef, tmp_path, keep):
    with open(pef, "rb") as file:
        data = file.read()
    cut = tmp_path / "cut.pef"
    cut.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(PefDamagedError, match=r"cut.pef is not a usable PEF"):
        trace(cut)


def test_an_altered_file(pef, tmp_path):
    altered = tmp_path / "altered.pef"
    with zipfile.ZipFile(pef) as old, zipfile.ZipFile(altered, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data.replace(b"aten", b"aton") if "programs/" in name else data)
    with pytest.raises(PefDamagedError, match=r"altered.pef is damaged"):
        trace(altered)


def test_a_file_of_something_else(tmp_path):
    other = tmp_path / "weights.pef"
    torch.save({"weight": torch.ones(2)}, other)
    with pytest.raises(PefDamagedError, match=r"not a usable PEF"):
        trace(other)


def with_content(pef, path, change):
    """A copy of a file whose manifest says something else."""
    with zipfile.ZipFile(pef) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                change(manifest["content"])
                data = json.dumps(manifest).encode()
            target.writestr(name, data)
    return path


def test_a_file_of_another_release(pef, tmp_path):
    old = with_content(pef, tmp_path / "old.pef", lambda c: c.update(version="0.0.1"))
    with pytest.raises(PefMismatchError, match=r"compiled by release '0.0.1', this is"):
        trace(old)


def test_a_failed_compile_leaves_the_old_file(pef, stored, monkeypatch, tmp_path):
    before = (stored / PEF).read_bytes()

    class Reads(Dense):
        def forward(self, x, y):
            return super().forward(x, y) if x.sum().item() > 0 else x

    model = samba.from_torch_model_(Reads())
    with pytest.raises(GraphError, match=r"test_pef.py"):
        samba.session.compile(model, named(rows(0)), sgd(model), config_dict=WHERE)
    assert (stored / PEF).read_bytes() == before


@pytest.mark.parametrize("name", ["a/b", "..", "../up"])
def test_the_name_is_no_path(name):
    model = samba.from_torch_model_(Dense())
    with pytest.raises(UsageError, match=r"is not the name of a file"):
        samba.session.compile(model, named(rows(0)), sgd(model), config_dict={"pef_name": name})


def test_another_target_is_said(pef, monkeypatch):
    # The file's code is of another target than the one that is asked for.
    monkeypatch.setenv("ABELE_TARGET", "null")
    assert get_target("null").unavailable() is None
    with pytest.warns(RecompiledWarning, match=r"dense.pef does not fit here"):
        trace(pef)
    assert samba.session.report.target == "null"
