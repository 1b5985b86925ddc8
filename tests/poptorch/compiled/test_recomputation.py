"""recomputationCheckpoint: containers, errors, equal bits, less memory."""

from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import inference, options, sgd, weights

Pair = namedtuple("Pair", "first second")
ONE, TWO = torch.ones(1), torch.ones(2)


class Deep(torch.nn.Module):
    """Blocks of dense layers with dropout; each block's result is checkpointed by a hook."""

    def __init__(self, blocks=3, checkpoints=True):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(
                torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Dropout(0.2)
            )
            for _ in range(blocks)
        )
        if checkpoints:
            for block in self.blocks:
                block.register_forward_hook(
                    lambda module, args, result: poptorch.recomputationCheckpoint(result)
                )

    def forward(self, x, target):
        for block in self.blocks:
            x = block(x)
        return F.mse_loss(x, target)


def trained(mode=None, checkpoints=True, **settings):
    model = Deep(checkpoints=checkpoints)
    made = options(**settings)
    if mode is not None:
        made._Popart.set("autoRecomputation", mode)
    wrapped = poptorch.trainingModel(model, made, sgd(model))
    torch.manual_seed(2)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        rows = 4 * made.Training.gradient_accumulation
        wrapped(*(torch.randn(rows, 8, generator=generator) for _ in range(2)))
    return weights(model), wrapped.program_text().count("gelu.default")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((ONE,), ONE),
        ((ONE, TWO), (ONE, TWO)),
        (([ONE],), [ONE]),
        (((ONE,),), (ONE,)),
        (([ONE, TWO],), [ONE, TWO]),
        ((Pair(ONE, TWO),), Pair(ONE, TWO)),
    ],
)
def test_containers_stay(given, expected):
    output = poptorch.recomputationCheckpoint(*given)
    assert type(output) is type(expected)
    inside = inference(lambda x: poptorch.recomputationCheckpoint(x, x + 1))(ONE)
    assert isinstance(inside, tuple)
    assert [each.tolist() for each in inside] == [[1.0], [2.0]]


@pytest.mark.parametrize("settings", [{}, {"gradientAccumulation": 2}])
def test_results_are_the_same_to_the_bit_with_dropout_too(settings):
    plain, computed_once = trained(checkpoints=False, **settings)
    output, computed = trained(**settings)
    assert torch.equal(output, plain)
    # All but the last block, whose values are needed at once.
    assert (computed_once, computed) == (3, 3 + 3)


@pytest.mark.parametrize(("mode", "count"), [(0, 3), (2, 3), (1, 6), (3, 6), (4, 6)])
def test_the_mode_decides(mode, count):
    assert trained(mode)[1] == count


def test_an_unknown_mode_is_refused():
    with pytest.raises(poptorch.Error, match="Unknown autoRecomputation 7"):
        trained(7)


def test_inference_takes_no_notice():
    model = Deep().eval()
    rows = torch.randn(2, 8), torch.randn(2, 8)
    wrapped = poptorch.inferenceModel(model, options())
    assert torch.equal(wrapped(*rows), model(*rows).detach())
    assert "abele" not in wrapped.program_text()


@pytest.mark.parametrize(("mode", "again"), [(None, False), (0, False), (3, True)])
def test_pipelined_stages_are_computed_again_when_asked(mode, again):
    def trained_in_stages(annotated):
        model = Deep(checkpoints=False)
        for ipu, block in enumerate(model.blocks if annotated else ()):
            poptorch.BeginBlock(block, ipu_id=ipu)
        made = options(gradientAccumulation=8).autoRoundNumIPUs(True)
        if mode is not None:
            made._Popart.set("autoRecomputation", mode)
        wrapped = poptorch.trainingModel(model, made, sgd(model))
        torch.manual_seed(2)
        wrapped(torch.ones(32, 8), torch.zeros(32, 8))
        return weights(model), wrapped.program_text().count("gelu.default")

    plain, once = trained_in_stages(annotated=False)
    output, computed = trained_in_stages(annotated=True)
    assert torch.equal(plain, output)
    assert (computed > once) is again
