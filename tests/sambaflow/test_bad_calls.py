"""Calls that cannot work say what was compiled, what was given and what to do."""

import argparse
import math
from typing import Any

import pytest
import torch

from helpers.samba_models import Dense, Net, batch, named, rows
from sambaflow import samba
from sambaflow.errors import GraphError, InputError, PefDamagedError, UsageError

SGD = torch.optim.SGD


@pytest.fixture
def dense(load):
    model = samba.from_torch_model_(Dense())
    return load(model, named(rows(0)), samba.optim.SGD(model.parameters(), lr=0.1))


def compiled(model, inputs, optimizer, **settings):
    samba.session.compile(samba.from_torch_model_(model), inputs, optimizer, **settings)


def test_inputs_of_a_run(dense):
    x, y = rows(0)
    for given, text in {
        (): "compiled for inputs image, label, given none",
        (x,): "given .unnamed.",
        named((x, y), ("image", "class")): "given image, class",
        named((x[:3], y[:3])): r"given \[3, 5\] .*drop_last=True",
        named((x[:, :3], y)): "Shapes are static; compile for this one",
        named((x.double(), y)): r"given \[4, 5\] torch.float64. Convert it",
        (samba.SambaTensor(shape=(4, 5), name="image"), named((x, y))[1]): "shape and no data",
    }.items():
        with pytest.raises(InputError, match=text):
            samba.session.run(given)
    with pytest.raises(InputError, match=r"given x, y\."):
        samba.session.run({"x": x, "y": y})


def test_inputs_of_a_run_in_another_order_or_without_names(dense):
    first = samba.session.run(named(rows(0)), section_types="fwd")
    x, y = rows(0)
    for given in (named((x, y))[::-1], (x, y), {"label": y, "image": x}):
        again = samba.session.run(given, section_types=["fwd"])
        assert torch.equal(again[1], first[1])


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        (["forward"], "sections are fwd, bckwd and opt"),
        ([], "cannot run"),
        (["fwd", "opt"], "opt needs the gradients"),
        (["bckwd"], "no fwd ran before it"),
        (["opt"], "there are no gradients"),
    ],
)
def test_sections(dense, sections, text):
    with pytest.raises(UsageError, match=f"(?i){text}"):
        samba.session.run(named(rows(0)), section_types=sections)


def test_hyperparameters(dense):
    for values, text in {
        ("rate", 0.1): "has 'rate', but a run can change lr, momentum, weight_decay",
        ("lr", (0.1, 0.2)): "2 values of lr for 1 parameter groups",
        ("momentum", 0.5): "compiled without momentum. Construct the optimizer with momentum",
    }.items():
        with pytest.raises(UsageError, match=text):
            samba.session.run(named(rows(0)), hyperparam_dict=dict([values]))
    samba.session.run(named(rows(0)), hyperparam_dict={"momentum": 0.0})


def test_gradients_of_outputs(dense):
    one, scores = torch.tensor(1.0), torch.ones(4, 3)
    run = samba.session.run
    samba.session.run(named(rows(0)), grad_of_outputs=[one, None])
    with pytest.raises(InputError, match=r"3 tensors; backward starts from 1 outputs of 2"):
        run(named(rows(0)), grad_of_outputs=[one] * 3)
    with pytest.raises(InputError, match=r"gradients for output_1, from which backward does not"):
        run(named(rows(0)), grad_of_outputs=[one, scores])
    with pytest.raises(InputError, match=r"output_0 has shape \[4, 3\], the output \[\]"):
        run(named(rows(0)), grad_of_outputs=[scores])
    with pytest.raises(UsageError, match=r"do not run backward. Add 'bckwd'"):
        run(named(rows(0)), grad_of_outputs=[one], section_types=["fwd"])
    with pytest.raises(ValueError, match=r"gradient of output_0 has shape \[4, 3\]"):
        dense[0].sn_grad = scores


def test_outputs_and_tensors_by_name(dense):
    with pytest.raises(InputError, match=r"output_tensors has other; the program's outputs are"):
        samba.session.run(named(rows(0)), [samba.SambaTensor(shape=(1,), name="other")])
    with pytest.raises(UsageError, match=r"no tensors named layer__wait"):
        samba.session.get_tensors_by_name(["layer__wait"])
    (weight,) = samba.session.get_tensors_by_name(["layer__weight"])
    assert weight.shape == (3, 5)


def test_the_model_of_another_program(dense):
    with pytest.raises(UsageError, match=r"conv.weight \[4, 1, 3, 3\], which the loaded program"):
        samba.session.to_cpu(Net())


def test_nothing_is_loaded():
    for call in (samba.session.run, samba.session.to_cpu, samba.session.to_device):
        with pytest.raises(UsageError, match=r"No program is loaded. Call samba.utils.trace_graph"):
            call()
    with pytest.raises(UsageError, match=r"No program is loaded"):
        _ = samba.session.report
    assert samba.session.optim_dict == {}
    assert samba.session.buffer_dict == {}


def test_scores_need_gradients_of_the_host(load):
    model = samba.from_torch_model_(Net())
    inputs = named(batch(0))[:1]
    load(model, inputs, samba.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UsageError, match=r"output_0 \[4, 3\] is neither scalar .*grad_of_outputs"):
        samba.session.run(inputs)


def test_an_inference_program_does_not_train(load):
    load(samba.from_torch_model_(Dense()), named(rows(0)))
    with pytest.raises(UsageError, match=r"was compiled for inference and has section fwd alone"):
        samba.session.run(named(rows(0)), section_types=["fwd", "bckwd"])


def test_optimizers():
    def fails(make, text):
        model = Dense()
        with pytest.raises(UsageError, match=text):
            compiled(model, named(rows(0)), make(model))

    fails(lambda m: torch.optim.Adafactor(m.parameters()), "Adafactor cannot be compiled. Use SGD")
    fails(lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS cannot be compiled: its step calls")
    fails(lambda m: torch.optim.Adam(m.parameters(), amsgrad=True), "amsgrad=True cannot be")
    fails(lambda m: SGD(m.parameters(), momentum=0.9, dampening=0.1), "dampening=0.1 cannot be")
    fails(lambda m: "sgd", "Expected optimizers of samba.optim or torch.optim, found str")
    fails(lambda m: [SGD(m.parameters()), SGD([m.layer.bias])], "same parameters: layer.bias")
    fails(
        lambda m: [SGD([m.layer.weight]), torch.optim.Adam([m.layer.bias])],
        "have to be of one class",
    )


def test_an_optimizer_of_nothing_in_the_model():
    with pytest.raises(GraphError, match=r"hold none of the model's parameters .*model.parameters"):
        compiled(Dense(), named(rows(0)), SGD([torch.nn.Parameter(torch.ones(1))]))


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ((), "have to be a tuple, list or dictionary of tensors"),
        ((1.0,), "Input 0 is a float. A program takes tensors"),
        (named(rows(0), ("x", "x")), "Two inputs are named 'x'"),
    ],
)
def test_inputs_of_compile(inputs, text):
    with pytest.raises(UsageError, match=text):
        compiled(Dense(), inputs, None)


def test_losses():
    class Constant(Dense):
        def forward(self, x, y):
            return x.sum() + y.sum()

    class Nothing(Dense):
        def forward(self, x, y):
            return None

    model = Constant()
    with pytest.raises(GraphError, match=r"No output of forward depends on a parameter"):
        compiled(model, named(rows(0)), SGD(model.parameters()))
    model = Nothing()
    with pytest.raises(GraphError, match=r"forward of Nothing returned no tensor, found NoneType"):
        compiled(model, named(rows(0)), SGD(model.parameters()))
    model = Dense()
    with pytest.raises(GraphError, match=r"loss_indices \[2\] was asked for, .* outputs \[0, 1\]"):
        compiled(model, named(rows(0)), SGD(model.parameters()), loss_indices=[2])


def test_several_processes_that_nothing_connects(dense, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    assert samba.utils.get_world_size() == 2
    with pytest.raises(UsageError, match=r"2 processes, but torch.distributed is not initialized"):
        samba.session.run(named(rows(0)), data_parallel=True)


ANY: Any = samba  # these calls give what no annotation allows


@pytest.mark.parametrize("model", [None, 3, "net", Dense, [Dense()], torch.relu, torch.ones(2)])
def test_a_model_that_is_none(dense, model):
    inputs, text = named(rows(0)), r"model is .*, needed is a torch\.nn\.Module: construct it"
    for call in (
        lambda: ANY.session.compile(model, inputs, None),
        lambda: ANY.utils.trace_graph(model, inputs, None, pef="none.pef"),
        lambda: ANY.from_torch_model_(model),
        *([] if model is None else [lambda: ANY.session.to_cpu(model)]),  # None: the traced one
    ):
        with pytest.raises(UsageError, match=text):
            call()


BAD_NUMBERS = ["a", "0.1", b"1", None, [None], ["a"], {"a": 1}, 1j, 10**400, torch.zeros(2)]
BAD_NUMBERS += [-1.0, math.nan, math.inf, torch.empty((), device="meta"), [-0.1]]


@pytest.mark.parametrize("name", ["lr", "weight_decay", "momentum"])
def test_hyperparameters_that_are_no_numbers(dense, name):
    for value in BAD_NUMBERS:
        with pytest.raises(
            UsageError, match=rf"{name}=.*needed is a finite number from 0 on. Pass"
        ):
            ANY.session.run(named(rows(0)), hyperparam_dict={name: value})
    for values in (3, "lr", ["lr"], [("lr", 0.1)], 0, ""):
        with pytest.raises(UsageError, match=r"hyperparam_dict is .*, needed is a dictionary of"):
            ANY.session.run(named(rows(0)), hyperparam_dict=values)


def test_arguments_of_a_run_that_are_something_else(dense):
    x, y = named(rows(0))
    run, error = ANY.session.run, InputError
    for given in (3, "image", iter([x, y]), object()):
        with pytest.raises(error, match=r"input_tensors is .*, needed is a tensor, or a tuple"):
            run(given)
    for given in (("a", y), (None, y), {"image": 3, "label": y}, ([x], y)):
        with pytest.raises(error, match=r"(Input image is .*needed is a tensor|given .*unnamed)"):
            run(given)
    with pytest.raises(error, match=r"output_tensors is 3 \(int\), needed is one of the program"):
        run((x, y), 3)
    for gradients in (3, "a", {"output_0": x}):
        with pytest.raises(error, match=r"grad_of_outputs is .*, needed is a tensor, or a tuple"):
            run((x, y), grad_of_outputs=gradients)
    for gradients in (["a"], [3, None]):
        with pytest.raises(error, match=r"grad_of_outputs\[0\] is .*, needed is a tensor, or None"):
            run((x, y), grad_of_outputs=gradients)
    with pytest.raises(UsageError, match=r"section_types is 3 \(int\), needed is a list of sec"):
        run((x, y), section_types=3)
    for names in (3, None, "layer__weight"):
        with pytest.raises(UsageError, match=r"names is .*, needed is a list of names of tensors"):
            ANY.session.get_tensors_by_name(names)
    with pytest.raises(UsageError, match=r"There are no tensors named 3"):
        ANY.session.get_tensors_by_name([3])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"config_dict": argparse.Namespace(a=1)}, r"config_dict is .*, such as vars\(args\)"),
        ({"config_dict": [("a", 1)]}, r"config_dict is .*needed is a dictionary"),
        ({"config_dict": {"output_folder": 3}}, r"output_folder is 3 \(int\), needed is the path"),
        ({"config_dict": {"pef_name": "a\0b"}}, r"pef_name 'a\\x00b' is not the name of a file"),
        ({"pef_metadata": "a"}, r"pef_metadata is 'a' \(str\), needed is a dictionary of JSON"),
        ({"loss_indices": 0}, r"loss_indices is 0 \(int\), needed is a list of positions"),
        (
            {"loss_indices": [0.0]},
            r"item of loss_indices is 0\.0 \(float\), needed is the position",
        ),
        ({"loss_indices": [0, 0]}, r"loss_indices \[0, 0\] names an output twice"),
    ],
)
def test_settings_of_compile(settings, text):
    model = Dense()
    with pytest.raises(UsageError, match=text):
        compiled(model, named(rows(0)), SGD(model.parameters()), **settings)


def test_names_and_norms_that_are_something_else(dense):
    with pytest.raises(PefDamagedError, match=r"'a\\x00b' cannot be the name of a PEF file"):
        ANY.utils.trace_graph(Dense(), named(rows(0)), None, pef="a\0b")
    with pytest.raises(UsageError, match=r"given a int, needed is a tensor. Convert it"):
        ANY.from_torch_tensor(3)
    with pytest.raises(ValueError, match=r"max_grad_norm has to be above 0, found a"):
        ANY.optim.AdamW(Dense().parameters(), max_grad_norm="a")


def test_an_optimizer_for_inference():
    model = Dense()
    with pytest.raises(UsageError, match=r"An optimizer was given for inference. Pass None"):
        compiled(model, named(rows(0)), SGD(model.parameters()), inference=True)


def test_names_that_do_not_exist():
    with pytest.raises(AttributeError, match=r"samba has no 'from_torhc', and torch has none"):
        _ = samba.from_torhc
    with pytest.raises(AttributeError, match=r"session has no 'runs'. Run `abele docs sambaflow`"):
        _ = samba.session.runs
    with pytest.raises(UsageError, match=r"a PEF of this package holds one model"):
        samba.utils.trace_multigraph()
