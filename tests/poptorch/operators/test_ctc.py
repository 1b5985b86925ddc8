"""The CTC loss in training wrappers, and its decoder against the sum over all alignments."""

import itertools
import math
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

import poptorch
from helpers.wrapping import inference, options, trains_like_eager

TIME, BATCH, CLASSES, LONGEST = 9, 3, 5, 4
INPUT_LENGTHS, TARGET_LENGTHS = torch.tensor([9, 8, 7]), torch.tensor([4, 2, 3])


class Speech(nn.Module):
    """Log probabilities by a dense layer, and what a test makes of them."""

    def __init__(self, loss):
        super().__init__()
        self.fc, self.loss = nn.Linear(5, CLASSES), loss

    def forward(self, x, *rest):
        log_probs = self.fc(x).log_softmax(-1).transpose(0, 1)
        return self.loss(log_probs, *rest)


def batch(dtype=torch.int64, blank=0):
    generator = torch.Generator().manual_seed(3)
    labels = [label for label in range(CLASSES) if label != blank]
    drawn = torch.randint(0, len(labels), (BATCH, LONGEST), generator=generator)
    targets = torch.tensor(labels)[drawn].to(dtype)
    return torch.randn(BATCH, TIME, 5, generator=generator), targets


def trains_alike(loss, *inputs):
    torch.manual_seed(0)
    trains_like_eager(Speech(loss), [inputs] * 3)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "settings", [{}, {"reduction": "sum"}, {"blank": 4}, {"zero_infinity": True}], ids=str
)
def test_training_is_torchs(settings, dtype):
    loss = nn.CTCLoss(**settings)
    x, targets = batch(dtype, settings.get("blank", 0))
    lengths = INPUT_LENGTHS
    if "zero_infinity" in settings:
        lengths = torch.tensor([2, 8, 7])  # too short for its target
    trains_alike(loss, x, targets, lengths, TARGET_LENGTHS)


@pytest.mark.parametrize("kind", [tuple, list, torch.tensor], ids=["tuple", "list", "tensor"])
def test_lengths_may_be_constants(kind):
    lengths = kind(INPUT_LENGTHS.tolist()), kind(TARGET_LENGTHS.tolist())
    trains_alike(lambda log_probs, t: F.ctc_loss(log_probs, t, *lengths), *batch())


def test_targets_may_be_one_vector():
    x, targets = batch()
    vector = torch.cat([row[:n] for row, n in zip(targets, TARGET_LENGTHS, strict=True)])

    def loss(log_probs):
        return F.ctc_loss(log_probs, vector, INPUT_LENGTHS, TARGET_LENGTHS)

    trains_alike(loss, x)


def test_one_sample_may_come_without_a_batch():
    x, targets = batch()
    trains_alike(
        lambda log_probs, t: F.ctc_loss(log_probs[:, 0], t[0], (TIME,), (LONGEST,)), x, targets
    )


def test_inference_without_reduction_is_torchs():
    model = Speech(nn.CTCLoss(reduction="none"))
    inputs = (*batch(), INPUT_LENGTHS, TARGET_LENGTHS)
    output = poptorch.inferenceModel(model, options())(*inputs)
    torch.testing.assert_close(output, model(*inputs).detach(), rtol=0, atol=0)


@pytest.mark.parametrize("function", [F.nll_loss, F.cross_entropy])
def test_class_weights_are_torchs(function):
    weight, labels = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5]), torch.tensor([0, 3, 4])
    trains_alike(lambda log_probs, t: function(log_probs[0], t, weight=weight), batch()[0], labels)


# -- the decoder ---------------------------------------------------------------------------


def every_alignment(log_probs, blank):
    """Log probability of every label sequence, by adding up all alignments that spell it."""
    sums = defaultdict(float)
    time, classes = log_probs.shape
    for alignment in itertools.product(range(classes), repeat=time):
        score = sum(log_probs[t, c].item() for t, c in enumerate(alignment))
        labels = tuple(c for c, _ in itertools.groupby(alignment) if c != blank)
        sums[labels] += math.exp(score)
    return sorted(((math.log(p), labels) for labels, p in sums.items()), reverse=True)


@pytest.mark.parametrize("blank", [0, 2])
def test_a_wide_beam_finds_the_most_probable_sequences(blank):
    torch.manual_seed(1)
    log_probs = torch.randn(6, 3, 3).log_softmax(-1)
    lengths = torch.tensor([6, 4, 0])

    def decode(p, n):
        return poptorch.ctc_beam_search_decoder(p, n, blank, 1000, 5)

    on_host, in_program = decode(log_probs, lengths), inference(decode)(log_probs, lengths)
    assert isinstance(in_program, list)
    for one, other in zip(on_host, in_program, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    scores, sizes, paths = on_host
    assert paths.shape == (3, 5, 6)
    for sample in (0, 1):
        expected = every_alignment(log_probs[: lengths[sample], sample], blank)[:5]
        for rank, (score, labels) in enumerate(expected):
            assert scores[sample, rank].item() == pytest.approx(score, abs=1e-5)
            assert sizes[sample, rank] == len(labels)
            assert tuple(paths[sample, rank, : len(labels)].tolist()) == labels
            assert (paths[sample, rank, len(labels) :] == blank).all()
    assert scores[2].tolist() == [0.0] + [-math.inf] * 4
    assert sizes[2].tolist() == [0] * 5


def test_a_narrow_beam_follows_few_sequences():
    torch.manual_seed(2)
    log_probs = (torch.randn(40, 2, 8) * 3).log_softmax(-1)
    lengths = torch.full((2,), 40)
    narrow, wide = (
        poptorch.ctc_beam_search_decoder(log_probs, lengths, beam_width=width) for width in (1, 100)
    )
    assert (narrow[0] <= wide[0] + 1e-6).all()
    assert (narrow[0] < wide[0]).any()


def test_a_prefix_that_returns_to_the_beam_is_the_same():
    """Its longer form stayed in the beam meanwhile, and their alignments add up."""
    torch.manual_seed(3)
    for _ in range(20):
        log_probs = (torch.randn(7, 1, 3) * 2).log_softmax(-1)
        _, sizes, paths = poptorch.ctc_beam_search_decoder(
            log_probs, torch.tensor([7]), beam_width=4, top_paths=4
        )
        results = [
            tuple(path[:n].tolist()) for path, n in zip(paths[0], sizes[0].tolist(), strict=True)
        ]
        assert len(set(results)) == 4


@pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, for NaN
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_where_no_sequence_is_possible_none_is_found(value):
    log_probs = torch.zeros(3, 1, 3).log_softmax(-1)
    log_probs[1] = value
    found = poptorch.ctc_beam_search_decoder(log_probs, torch.tensor([3]), top_paths=2)
    assert [each.tolist() for each in found] == [[[-math.inf] * 2], [[0, 0]], [[[0] * 3] * 2]]


P, N = torch.zeros(4, 2, 3), torch.tensor([4, 4])
BAD = [
    ((3, N), {}, "probs as a tensor, found int"),
    ((P, [4, 4]), {}, "lengths as a tensor, found list"),
    ((P, N, 0.0), {}, "blank as an int, found float"),
    ((P[0], N), {}, r"shape \[time, batch, classes\], found \[2, 3\]"),
    ((P, N[:1]), {}, r"one integer per sample in lengths, 2, found \[1\]"),
    ((P, N), {"blank": 3}, "blank below 3, the classes, found 3"),
    ((P, N), {"beam_width": 2, "top_paths": 3}, "top_paths <= beam_width, found 3 and 2"),
]


@pytest.mark.parametrize(("args", "settings", "message"), BAD)
def test_bad_arguments_are_named(args, settings, message):
    with pytest.raises(poptorch.Error, match=message):
        poptorch.ctc_beam_search_decoder(*args, **settings)
