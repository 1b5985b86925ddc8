"""Micro-steps that emitted code runs one after the other: as if Python had called each."""

import functools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import build, get_target
from abele.errors import IndexCheckError
from abele.runtime.observers import Observer
from abele.step.config import OutputMode, StepConfig
from helpers import runs
from helpers.models import MODELS
from helpers.runs import AfterMicroSteps, assert_same_bits, captured, rule_for, run, started

pytestmark = pytest.mark.compiler
INTRODUCTION = MODELS["introduction"]
CONFIGS = {
    "device iterations": StepConfig(device_iterations=7),
    "all outputs": StepConfig(device_iterations=7, output_mode=OutputMode.ALL),
    "some outputs": StepConfig(
        device_iterations=6, output_mode=OutputMode.EVERY_N, output_period=2
    ),
    "accumulation": StepConfig(gradient_accumulation=4),
    "both": StepConfig(device_iterations=3, gradient_accumulation=4, output_mode=OutputMode.SUM),
    "inference": StepConfig(device_iterations=7, training=False, output_mode=OutputMode.ALL),
}


@pytest.fixture(autouse=True)
def emitted(monkeypatch):
    monkeypatch.setenv("ABELE_LOWERING", "emitted")


@functools.cache
def programs(name):
    module, config = INTRODUCTION.fresh(), CONFIGS[name]
    rule = rule_for(module) if config.training else None
    return captured(module, INTRODUCTION.batch(4), config, rule).programs, rule


def session_of(config):
    made, rule = programs(next(name for name, each in CONFIGS.items() if each == config))
    executable, _ = build(made, config, target=get_target("cpu"))
    return runs.session_of(executable, INTRODUCTION.fresh(), config, rule)


def batches(config, count=3):
    rows = 4 * config.device_iterations * config.gradient_accumulation
    return [INTRODUCTION.batch(rows, seed=seed) for seed in range(count)]


def groups_of(session, batch):
    """How many micro-steps ran together."""
    sizes = []
    whole = session.runner.run
    session.runner.run = lambda group, *rest: (sizes.append(len(group)), whole(group, *rest))[1]
    session.step(batch)
    del session.runner.run
    return sizes


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_bits_are_those_of_calls_from_python(config):
    together, watched = session_of(config), session_of(config)
    steps = AfterMicroSteps(lambda: None)
    watched.add_observer(steps)
    assert_same_bits(run(together, batches(config)), run(watched, batches(config)))
    micro_steps = config.device_iterations * config.gradient_accumulation
    assert len(steps.values) == 3 * micro_steps
    assert groups_of(watched, batches(config)[0]) == [1] * micro_steps
    assert max(groups_of(together, batches(config)[0])) > 1


class Language(torch.nn.Module):
    """Causal attention over tokens; what is predicted is the same tokens, one further."""

    def __init__(self):
        super().__init__()
        self.tokens, self.joint = torch.nn.Embedding(11, 16), torch.nn.Linear(16, 48)

    def forward(self, text):
        x = self.tokens(text[:, :-1])
        parts = self.joint(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        scores = F.linear(seen.transpose(1, 2).reshape(x.shape), self.tokens.weight)
        return F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())


def test_models_with_attention_and_token_indices_run_so_too():
    config = CONFIGS["all outputs"]
    generator = torch.Generator().manual_seed(5)
    texts = [(torch.randint(0, 11, (14, 9), generator=generator),) for _ in range(3)]
    together, watched = (_language_session(config, texts[0][0][:2]) for _ in range(2))
    watched.add_observer(AfterMicroSteps(lambda: None))
    assert_same_bits(run(together, texts), run(watched, texts))
    assert max(groups_of(together, texts[0])) > 1
    watched.step(texts[0])
    wrong = texts[0][0].clone()
    wrong[5, 8] = 11  # only ever predicted
    for session in (together, watched):
        with pytest.raises(IndexCheckError, match=r"nll_loss takes the indices 0 to 10 .* 11\."):
            session.step((wrong,))
    for name, value in together.params.items():
        assert torch.equal(value, watched.params[name]), name


def _language_session(config, rows):
    torch.manual_seed(2)
    module = Language()
    return started(module, (rows,), rule_for(module), config, target="cpu")[0]


def test_results_of_earlier_calls_and_micro_steps_stay():
    session = session_of(CONFIGS["all outputs"])
    first, second, _ = batches(CONFIGS["all outputs"])
    session.step(first)
    results = session.step(first)
    before = [each.clone() for each in results]
    session.step(second)
    assert all(torch.equal(a, b) for a, b in zip(results, before, strict=True))
    assert len({float(loss) for loss in results[1]}) == 7  # each micro-step has its own


def test_each_micro_step_has_its_times():
    session = session_of(CONFIGS["device iterations"])
    observer = Observer()
    session.add_observer(observer)
    for batch in batches(CONFIGS["device iterations"]):
        session.step(batch)
    times = session.last_call.micro_steps()
    assert len(times) == 7
    flat = [session.last_call.began_ns, *(t for pair in times for t in pair)]
    assert flat == sorted(flat)
    assert flat[-1] <= session.last_call.ended_ns


def test_updates_end_what_runs_together(monkeypatch):
    # However long a micro-step takes on a busy machine.
    monkeypatch.setattr("abele.runtime.micro_steps._TOGETHER_NS", 10**12)
    session = session_of(CONFIGS["both"])
    session.step(batches(CONFIGS["both"])[0])
    sizes = groups_of(session, batches(CONFIGS["both"])[0])
    assert sizes == [4, 4, 4]


def test_an_index_that_does_not_fit_ends_the_call_after_the_steps_before_it():
    config = CONFIGS["device iterations"]
    stopped, other = session_of(config), session_of(config)
    images, labels = batches(config)[0]
    for session in (stopped, other):
        session.step((images, labels))
    other.add_observer(AfterMicroSteps(lambda: None))
    wrong = labels.clone()
    wrong[4 * 3] = 10
    for session in (stopped, other):
        with pytest.raises(IndexCheckError, match="found 10"):
            session.step((images, wrong))
        assert session.was_stopped
    for name, value in stopped.params.items():
        assert torch.equal(value, other.params[name]), name


def test_inputs_in_another_order_are_taken_one_by_one():
    config = CONFIGS["device iterations"]
    session, other = session_of(config), session_of(config)
    images, labels = batches(config)[0]
    for _ in range(2):
        torch.testing.assert_close(
            session.step((images.transpose(2, 3).contiguous().transpose(2, 3), labels)),
            other.step((images, labels)),
            rtol=0,
            atol=0,
        )


def test_long_steps_run_alone_so_that_a_call_can_be_interrupted(monkeypatch):
    monkeypatch.setattr("abele.runtime.micro_steps._TOGETHER_NS", 1)
    config = CONFIGS["device iterations"]
    session = session_of(config)
    session.step(batches(config)[0])
    assert groups_of(session, batches(config)[0]) == [1] * 7
