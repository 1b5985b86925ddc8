"""Exporting: which files appear, what is refused, and loading an executable into a wrapper."""

import collections
import enum
import logging
import os
import pickle
import zipfile

import pytest
import torch

import poptorch
from helpers.exported import Pair
from helpers.wrapping import (
    Calls,
    Scorer,
    inference,
    options,
    plain_steps,
    rows,
    scorer,
    sgd,
    trainer,
    weights,
)


def doubled(tmp_path, **settings):
    wrapped = inference(lambda x: x * 2)
    wrapped.compileAndExport(tmp_path / "x", torch.ones(2, 3), **settings)
    return tmp_path / "x"


def test_export_compiles_and_does_not_run(tmp_path):
    model = scorer()
    before = weights(model).clone()
    wrapped = trainer(model)
    wrapped.compileAndExport(tmp_path / "x", *rows(4))
    assert wrapped.isCompiled()
    assert torch.equal(weights(model), before)
    assert os.listdir(tmp_path) == ["x"]


def test_saving_needs_an_executable(tmp_path):
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        trainer(scorer()).save(tmp_path / "x")
    assert os.listdir(tmp_path) == []


def test_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "taken").write_text("mine")
    wrapped = inference(lambda x: x * 2)
    for path in ("taken/x", "taken/deeper/x"):
        with pytest.raises(AssertionError, match="taken is not a directory"):
            wrapped.compileAndExport(tmp_path / path, torch.ones(2))
    assert not wrapped.isCompiled()
    wrapped(torch.ones(2))
    with pytest.raises(AssertionError, match="taken is not a directory"):
        wrapped.save(tmp_path / "taken" / "x")


def test_a_folder_gets_a_file_inside_and_a_warning(tmp_path, caplog):
    wrapped = inference(lambda x: x * 2)
    wrapped(torch.ones(2))
    with caplog.at_level(logging.WARNING, "poptorch::python"):
        wrapped.save(str(tmp_path))
    assert "is a directory: the model is saved to" in caplog.text
    assert os.listdir(tmp_path) == ["model.poptorch"]
    assert torch.equal(poptorch.load(tmp_path / "model.poptorch")(torch.ones(2)), 2 * torch.ones(2))


def test_nothing_in_the_file_is_a_pickle(tmp_path):
    model = scorer()
    wrapped = trainer(model, poptorch.optim.Adam(model.parameters(), lr=0.1))
    wrapped(*rows(4))
    wrapped.save(tmp_path / "x")
    with zipfile.ZipFile(tmp_path / "x") as archive:
        for name in archive.namelist():
            with pytest.raises(Exception):  # noqa: B017, PT011 - in whatever way it fails
                pickle.loads(archive.read(name))  # noqa: S301 - it has to fail


# -- arguments and results -------------------------------------------------------------------


class Output(dict):
    """A result class of a program."""


STRUCTURES = [
    lambda x: [x, (x + 1, {"a": x, 2: None})],
    lambda x: collections.OrderedDict(b=x, a=[x * 2, True, 1.5, "text"]),
    lambda x: collections.defaultdict(list, a=x + 1),
    lambda x: Pair(x + 1, [x, torch.float16]),
    lambda x: torch.max(x, 0),
    lambda x: Output(a=x + 1),
    lambda x: None,
    lambda x: x.shape,
]


@pytest.mark.parametrize("index", range(len(STRUCTURES)))
def test_results_keep_their_containers(index, tmp_path):
    wrapped = inference(STRUCTURES[index])
    x = torch.randn(3, 2)
    expected = wrapped(x)
    wrapped.save(tmp_path / "x")
    loaded = poptorch.load(tmp_path / "x")(x)
    assert type(loaded) is type(expected)
    assert repr(loaded) == repr(expected)


def test_arguments_keep_their_containers_and_constants(tmp_path):
    def forward(self, x, pair, *more, factor=2.0, **named):
        return x * factor + pair.loss + more[0][1] + named["deep"]["z"] + self.weight

    wrapped = poptorch.inferenceModel(
        Calls(lambda self, *a, **k: forward(self, *a, **k)), options()
    )
    one = torch.ones(2)
    arguments = (one, Pair(one, 3), [None, one])
    settings = {"factor": 4.0, "deep": {"z": one, "on": True}}
    expected = wrapped(*arguments, **settings)
    wrapped.save(tmp_path / "x")
    loaded = poptorch.load(tmp_path / "x")
    assert torch.equal(loaded(*arguments, **settings), expected)
    with pytest.raises(poptorch.Error, match=r"Value mismatch for factor: expected 4\.0"):
        loaded(*arguments, **settings | {"factor": 5.0})
    with pytest.raises(poptorch.Error, match="Missing arguments: deep"):
        loaded(*arguments, factor=4.0)


def test_constant_results_come_back(tmp_path):
    constant = torch.arange(3)
    wrapped = inference(lambda x: (constant, x + 1))
    with pytest.warns(UserWarning, match="is returned as a constant"):
        wrapped(torch.ones(2))
    wrapped.save(tmp_path / "x")
    first, second = poptorch.load(tmp_path / "x")(torch.ones(2))
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [2, 2])


def test_a_dictionary_class_of_an_unknown_module_is_named(tmp_path, monkeypatch):
    wrapped = inference(lambda x: Output(a=x))
    monkeypatch.setattr(Output, "__module__", "gone.away")
    wrapped(torch.ones(2))
    wrapped.save(tmp_path / "x")
    with pytest.raises(poptorch.Error, match=r"of class gone\.away\.Output, .* Import gone\.away"):
        poptorch.load(tmp_path / "x")


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize("value", [Colour.RED, object(), b"raw"], ids=["enum", "object", "bytes"])
def test_other_constants_are_refused_by_name(value, tmp_path):
    wrapped = inference(lambda x, other: x + 1)
    wrapped(torch.ones(2), [1, value])
    name = type(value).__name__
    with pytest.raises(
        poptorch.Error, match=rf"other.*\[1\]|arg.* cannot be stored in a file.*type {name}"
    ):
        wrapped.save(tmp_path / "x")
    assert os.listdir(tmp_path) == []


class Held:
    def __init__(self, x):
        self.x = x


class HeldParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x

    def reconstruct(self, original_structure, tensor_iterator):
        return Held(next(tensor_iterator))


def test_types_with_a_parser_are_refused_by_name(tmp_path):
    poptorch.registerCustomArgParser(Held, HeldParser())
    try:
        wrapped = inference(lambda held: held.x + 1)
        wrapped(Held(torch.ones(2)))
        with pytest.raises(poptorch.Error, match="is a Held, which a custom parser takes apart"):
            wrapped.save(tmp_path / "x")
    finally:
        poptorch.registerCustomArgParser(Held, None)


# -- loadExecutable --------------------------------------------------------------------------


def exported(tmp_path, model=None, export_model=False, **settings):
    model = model or scorer()
    wrapped = trainer(model, sgd(model, momentum=0.9), **settings)
    wrapped.compileAndExport(tmp_path / "x", *rows(4), export_model=export_model)
    return tmp_path / "x"


@pytest.mark.parametrize("export_model", [True, False])
def test_an_executable_is_loaded_in_place_of_compiling(export_model, tmp_path, monkeypatch):
    path = exported(tmp_path, export_model=export_model)
    model = scorer(5)
    wrapped = trainer(model, sgd(model, momentum=0.9))
    wrapped.loadExecutable(path)
    assert wrapped.isCompiled()
    plain = scorer(5)
    batches = [[rows(4, seed)] for seed in range(3)]
    expected = plain_steps(plain, sgd(plain, momentum=0.9), batches)
    assert [wrapped(*batch[0])[0] for batch in batches] == expected
    assert torch.equal(weights(model), weights(plain))


class Wider(Scorer):
    """A scorer with one input more, which it makes up itself."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(5, 3)

    def forward(self, x, target):
        return super().forward(torch.nn.functional.pad(x, (0, 1)), target)


OTHERS = {
    "another width": (Wider, {}, {}, r"program step: .*f32\[3, 4\].* there, .*f32\[3, 5\].* here"),
    "another optimizer": (scorer, {}, {"nesterov": True}, "program step: .* there, .* here"),
    "other options": (scorer, {"gradientAccumulation": 4}, {}, "gradient_accumulation: 1 there, 4"),
    "iterations": (scorer, {"deviceIterations": 2}, {}, "with deviceIterations 1, this .* has 2"),
    "another signature": (lambda: Calls(len), {}, {}, r"takes \(x, target\) there, \(args, kw"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_executable_of_another_model_is_refused_by_name(name, tmp_path):
    path = exported(tmp_path)
    make, settings, values, named = OTHERS[name]
    model = make()
    wrapped = trainer(model, sgd(model, momentum=0.9, **values), **settings)
    with pytest.raises(poptorch.Error, match=f"(?s){named}"):
        wrapped.loadExecutable(path)
    assert not wrapped.isCompiled()


def test_a_training_executable_is_not_for_inference(tmp_path):
    path = exported(tmp_path)
    with pytest.raises(poptorch.Error, match=r"holds a model for training.*trainingModel"):
        poptorch.inferenceModel(scorer(), options()).loadExecutable(path)


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x05\x06" + bytes(18)])
def test_loading_something_else_is_an_invalid_file(content, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(poptorch.Error, match=r"Invalid file .*other"):
        trainer(scorer()).loadExecutable(path)


# -- plain pickles ---------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [trainer, lambda m: poptorch.inferenceModel(m, options())])
def test_torch_save_of_a_wrapped_module_gives_plain_objects(wrap, tmp_path):
    model = scorer()
    wrapped = wrap(model)
    wrapped(*rows(4))
    torch.save(model, tmp_path / "module")
    torch.save(wrapped.model, tmp_path / "of the wrapper")
    torch.save(wrapped.state_dict(), tmp_path / "state")
    for name in ("module", "of the wrapper"):
        loaded = torch.load(tmp_path / name, weights_only=False)
        assert type(loaded).__name__ == "Scorer"
        assert type(loaded.fc.weight) is torch.nn.Parameter
        assert torch.equal(weights(loaded), weights(model))
    state = torch.load(tmp_path / "state", weights_only=True)
    assert {type(value) for value in state.values()} == {torch.Tensor}
    plain = scorer(8)
    plain.load_state_dict(state)
    assert torch.equal(weights(plain), weights(model))


def test_loading_into_a_compiled_wrapper_is_refused(tmp_path):
    path = exported(tmp_path)
    wrapped = trainer(scorer())
    wrapped(*rows(4))
    with pytest.raises(poptorch.Error, match=r"is compiled already. Call destroy\(\)"):
        wrapped.loadExecutable(path)
