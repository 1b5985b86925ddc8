"""Model-independent commands of a program: compile, test and measuring."""

import argparse
import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sambaflow.logging import samba_logger
from sambaflow.samba import _arguments
from sambaflow.samba._arguments import flat_tensors
from sambaflow.samba._session import session
from sambaflow.samba.sambatensor import SambaTensor
from sambaflow.samba.utils import assert_close, measure_performance, measure_sections
from sambaflow.samba.utils.pef_utils import get_pefmeta

_SEED = 0


def common_app_driver(
    args: argparse.Namespace,
    model: torch.nn.Module,
    inputs: Any,
    optim: Any = None,
    name: str | None = None,
    app_dir: str | None = None,
    **hints: Any,
) -> Any:
    """Execute the command ``args.command``; ``run`` is left to the program.

    Args:
        args: of ``parse_app_args``.
        model: converted with ``from_torch_model_``.
        inputs: named dummy tensors.
        optim: one optimizer, several, or None for inference.
        name: base of the PEF's name.
        app_dir: accepted.
        hints: for ``session.compile``; for other commands accepted.

    Returns:
        For ``compile`` the file, for measurements their numbers, else None.

    Raises:
        AssertionError: ``test`` found a difference.
    """
    if args.command == "compile":
        return session.compile(
            model,
            inputs,
            optim,
            name=name,
            app_dir=app_dir,
            config_dict=vars(args),
            pef_metadata=get_pefmeta(args, model),
            **hints,
        )
    if args.command == "run":
        samba_logger.info("common_app_driver leaves the command run to the program.")
        return None
    reference = copy.deepcopy(model)
    session.trace_graph(model, inputs, optim, pef=args.pef, **hints)
    if args.command == "test":
        compare(reference, inputs, optim)
        return None
    if args.command == "measure-sections":
        return measure_sections(model, inputs, n_iterations=args.num_iterations)
    return measure_performance(
        model,
        inputs,
        n_iterations=args.num_iterations,
        inference=args.inference,
        json=args.json,
        compiled_stats_json=args.compiled_stats_json,
        data_parallel=args.data_parallel,
        reduce_on_rdu=args.reduce_on_rdu,
        min_duration=args.min_duration,
    )


def compare(reference: torch.nn.Module, inputs: Any, optim: Any) -> None:
    """Compare outputs, and gradients if there is an optimizer, of one run with plain PyTorch."""
    graph = session._loaded()
    named, keywords = _arguments.named_inputs(inputs)
    torch.manual_seed(_SEED)
    outputs = _reference_outputs(reference, named, keywords)
    seeds = [torch.ones(outputs[i].shape, dtype=outputs[i].dtype) for i in graph.traced.starts]
    torch.manual_seed(_SEED)
    training = bool(graph.rule) and optim is not None
    results = session.run(inputs, grad_of_outputs=seeds if training else None)
    for result, expected in zip(results, outputs, strict=True):
        assert_close(result, expected, result.sn_name, _threshold(expected))
    if training:
        torch.autograd.backward([outputs[i] for i in graph.traced.starts], seeds)
        _compare_gradients(reference, graph.module)
    print("Test passed: the PEF computes what plain PyTorch computes.")


def _reference_outputs(
    reference: torch.nn.Module, named: Mapping[str, SambaTensor], keywords: Sequence[str]
) -> list[torch.Tensor]:
    values = [tensor.torch() for tensor in named.values()]
    result = reference(**dict(zip(keywords, values, strict=True))) if keywords else None
    return list(flat_tensors(reference(*values) if result is None else result))


def _compare_gradients(reference: torch.nn.Module, module: torch.nn.Module) -> None:
    graph = session._loaded()
    params = dict(module.named_parameters())
    for name, parameter in reference.named_parameters():
        gradient = graph.gradient(params[name])
        if parameter.grad is not None and gradient is not None:
            assert_close(gradient, parameter.grad, f"gradient of {name}", _threshold(parameter))


def _threshold(tensor: torch.Tensor) -> float:
    """Return the tolerance for comparing a dtype; larger for half precision (8 bits)."""
    return 3e-3 if tensor.dtype in (torch.float32, torch.float64) else 5e-2
