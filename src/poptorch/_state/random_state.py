"""The state of a wrapper's random numbers as the list of integers that programs keep."""

from typing import Any

import torch

from abele.runtime.session import Session


def read(session: Session) -> list[int]:
    """Return the seed and each replica's generator state, or torch's without a seed."""
    states = session.random_state
    if states is None:
        generator = _generators(session)
        return [generator.initial_seed(), *_integers(generator.get_rng_state())]
    numbers = [0 if session.seed is None else session.seed]
    for state in states:
        numbers += _integers(state)
    return numbers


def write(session: Session, numbers: list[int]) -> None:
    """Continues from a state that ``read`` returned.

    Raises:
        ValueError: the state of another number of generators.
    """
    streams = session.random_state
    states = [_generators(session).get_rng_state()] if streams is None else streams
    if not all(isinstance(number, int) and -(2**63) <= number < 2**63 for number in numbers[1:]):
        raise ValueError("rng_state must be a list of 64-bit integers, as a wrapper returned it.")
    values = torch.tensor(numbers[1:], dtype=torch.int64).view(torch.uint8)
    sizes = [state.numel() for state in states]
    if values.numel() != sum(sizes):
        raise ValueError(
            f"rng_state must have {1 + sum(sizes) // 8} numbers for {len(states)} generators, "
            f"found {len(numbers)}. Use a state that a wrapper with the same options returned."
        )
    if streams is None:
        _generators(session).set_rng_state(values)
    else:
        session.random_state = list(values.split(sizes))
        session.seed = numbers[0]


def _generators(session: Session) -> Any:
    """Return torch's module for the generator of the session's device."""
    return torch.cuda if session.device.type == "cuda" else torch


def _integers(state: torch.Tensor) -> list[int]:
    return state.view(torch.int64).tolist()
