"""Decoding the output of a network trained with the CTC loss."""

import torch

from abele.ops import ctc
from poptorch._error import error


def ctc_beam_search_decoder(
    probs: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    beam_width: int = 100,
    top_paths: int = 1,
) -> list[torch.Tensor]:
    """Return the most probable label sequences, by prefix beam search.

    Args:
        probs: [time, batch, classes] log probabilities.
        lengths: [batch] integers, how many time steps of each sample count.
        blank: the class that separates labels.
        beam_width: how many sequences are followed at a time.
        top_paths: how many to return, at most ``beam_width``.

    Returns:
        A list of three: log probabilities [batch, top_paths] of the dtype of ``probs``, the best
        first; lengths [batch, top_paths], int32; labels [batch, top_paths, time], int32, padded
        with ``blank``. Where there are fewer sequences, the rest has probability 0 and length 0.

    Raises:
        poptorch.Error: an argument of another type, or sizes that do not fit.
    """
    name = "poptorch.ctc_beam_search_decoder()"
    for label, value in (("probs", probs), ("lengths", lengths)):
        if not isinstance(value, torch.Tensor):
            raise error(f"{name} needs {label} as a tensor, found {type(value).__name__}.")
    for label, value in (("blank", blank), ("beam_width", beam_width), ("top_paths", top_paths)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise error(f"{name} needs {label} as an int, found {type(value).__name__}.")
    if probs.dim() != 3 or not probs.is_floating_point():
        raise error(
            f"{name} needs floating point probs of shape [time, batch, classes], found "
            f"{list(probs.shape)} of {probs.dtype}."
        )
    if tuple(lengths.shape) != (probs.shape[1],) or lengths.dtype.is_floating_point:
        raise error(
            f"{name} needs one integer per sample in lengths, {probs.shape[1]}, found "
            f"{list(lengths.shape)} of {lengths.dtype}."
        )
    if not 0 <= blank < probs.shape[2]:
        raise error(f"{name} needs blank below {probs.shape[2]}, the classes, found {blank}.")
    if not 1 <= top_paths <= beam_width:
        raise error(
            f"{name} needs 1 <= top_paths <= beam_width, found {top_paths} and {beam_width}."
        )
    return list(ctc.beam_search(probs.detach(), lengths, blank, beam_width, top_paths))
