"""The state of a wrapper's random numbers as the list of integers that programs keep."""

import torch

from abele.runtime.session import Session


def read(session: Session) -> list[int]:
    """The seed, then the state of each replica's generator, or of torch's own without a seed."""
    seed = session.config.seed
    states = session.random_state
    if states is None:
        return [torch.initial_seed(), *_integers(torch.get_rng_state())]
    numbers = [0 if seed is None else seed]
    for state in states:
        numbers += _integers(state)
    return numbers


def write(session: Session, numbers: list[int]) -> None:
    """Continues from a state that ``read`` returned.

    Raises:
        ValueError: the state of another number of generators.
    """
    own = session.random_state
    states = [torch.get_rng_state()] if own is None else own
    found = torch.tensor(numbers[1:], dtype=torch.int64).view(torch.uint8)
    sizes = [state.numel() for state in states]
    if found.numel() != sum(sizes):
        raise ValueError(
            f"rng_state must have {1 + sum(sizes) // 8} numbers for {len(states)} generators, "
            f"found {len(numbers)}. Use a state that a wrapper with the same options returned."
        )
    if own is None:
        torch.set_rng_state(found)
    else:
        session.random_state = list(found.split(sizes))


def _integers(state: torch.Tensor) -> list[int]:
    return state.view(torch.int64).tolist()
