"""Every mode takes the same steps, and where it says it takes them."""

import dataclasses
import os

import pytest
import torch

import poptorch
from cosmictagger.backends import Settings, create
from cosmictagger.checkpoints import weights_hash
from cosmictagger.config.keys import ComputeMode, Optimizer, OptimizerKind, Precision
from cosmictagger.errors import BackendError, ConfigError
from cosmictagger.measures import Loss
from helpers.cosmic_small import PlaneNet, batch_of

STEPS = 10


def made(mode="CPU", folder=None, training=True, **changes):
    torch.manual_seed(3)
    optimizer = changes.pop("optimizer", Optimizer()) if training else None
    return create(
        PlaneNet(),
        Loss("focal"),
        Settings(
            mode=ComputeMode[mode],
            micro_batch=2,
            optimizer=optimizer,
            folder=None if folder is None else str(folder),
            **changes,
        ),
    )


def trained(backend, steps=STEPS, rows=2, first=0):
    rates = [1e-3 * (1 + step % 3) for step in range(first, first + steps)]
    return [
        float(backend.train_step(batch_of(rows, seed=first + step), rate).loss)
        for step, rate in enumerate(rates)
    ]


@pytest.fixture(scope="module")
def devices(tmp_path_factory):
    """One backend of each device, trained for ten steps; tracing them once is enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABELE_TARGET", "reference")
        results = {m: made(m, tmp_path_factory.mktemp(m)) for m in ("CPU", "IPU", "RDU")}
        losses = {mode: trained(backend) for mode, backend in results.items()}
    yield results, losses
    for backend in results.values():
        backend.close()


def test_programs_are_kept_for_the_next_backend(tmp_path, monkeypatch):
    monkeypatch.delenv("ABELE_TARGET")  # a processor's programs, which are compiled first
    first, second = (made("IPU", executables=str(tmp_path)) for _ in range(2))
    trained(first, 1)
    first.close()
    (kept,) = tmp_path.glob("*.abele")
    os.utime(kept, (0, 0))
    trained(second, 1)
    proof = second.proof()
    assert (proof.interpreted_steps, proof.compiled_steps) == (0, 1)
    assert f"executable {kept.name[:16]}, made in" in proof.line()
    assert proof.line().endswith("; from the cache: compiled programs run")
    assert kept.stat().st_mtime > 0  # was used last now
    second.close()


@pytest.mark.parametrize("mode", ["CPU", "IPU", "RDU"])
def test_fewer_events_than_a_program_takes(devices, mode):
    backend, batch = devices[0][mode], batch_of(1, seed=5)
    both = backend.evaluate_step(batch_of(2, seed=5))
    result = backend.evaluate_step(batch)
    assert [plane.shape[0] for plane in result.logits] == [1, 1, 1]
    torch.testing.assert_close(result.loss, Loss("focal")(result.logits, batch.label))
    assert not torch.equal(result.loss, both.loss)
    unlabelled = dataclasses.replace(batch, label=None)
    again = backend.evaluate_step(unlabelled)
    assert again.loss is None
    torch.testing.assert_close(again.logits, result.logits)


@pytest.mark.parametrize("mode", ["IPU", "RDU"])
def test_a_run_can_go_on_in_another_mode(devices, mode):
    """Weights, statistics and both moments of the optimizer are the same for every mode."""
    device, plain = devices[0][mode], made("CPU")
    plain.load_state_dict(device.state_dict())
    expected = trained(device, 3, first=50)
    assert trained(plain, 3, first=50) == pytest.approx(expected, abs=1e-5)
    device.load_state_dict(plain.state_dict())
    assert device.evaluate_step(batch_of(2)).loss == pytest.approx(
        float(plain.evaluate_step(batch_of(2)).loss), abs=1e-5
    )
    expected = trained(plain, 3, first=60)
    assert trained(device, 3, first=60) == pytest.approx(expected, abs=1e-5)
    device.proof()  # the device's count of updates agrees


def test_the_state_of_the_originals_optimizer_is_taken():
    backend, other = made(), made()
    trained(backend, 3)
    content = backend.state_dict()
    other.load_state_dict(
        {"state_dict": content["state_dict"], "optimizer": backend._optimizer.state_dict()}
    )
    assert trained(other, 2, first=7) == trained(backend, 2, first=7)


def test_another_kind_of_optimizer_is_refused():
    backend = made()
    trained(backend, 1)
    other = made(optimizer=Optimizer(name=OptimizerKind.rmsprop))
    with pytest.raises(BackendError, match=r"trained with adam, this run asks for .*rmsprop"):
        other.load_state_dict(backend.state_dict())


class TestThePublishedMistake:
    """The published port called ``.to(device)`` on its executor and trained on the host."""

    def test_a_lost_executor_is_noticed_before_the_step(self):
        backend = made("IPU")
        before = weights_hash(backend.state_dict()["state_dict"])
        backend.trainer = backend.trainer.to(torch.device("cpu"))
        assert not isinstance(backend.trainer, poptorch.PoplarExecutor)
        with pytest.raises(
            BackendError, match=r"about to run on the host.*LossInForward.*\.to\(\)"
        ):
            backend.train_step(batch_of(2), 1e-3)
        assert weights_hash(backend.state_dict()["state_dict"]) == before
        assert backend.training_steps == 0
        with pytest.raises(BackendError, match="instead of poptorch's"):
            backend.proof()

    def test_evaluation_likewise(self):
        backend = made("IPU", training=False)
        backend.evaluator = backend.evaluator.cpu()
        with pytest.raises(BackendError, match="step of evaluation"):
            backend.evaluate_step(batch_of(2))

    @pytest.mark.parametrize("mode", ["IPU", "RDU"])
    def test_the_device_counts_updates_too(self, devices, mode):
        backend = devices[0][mode]
        made_by_device = backend.training_steps + backend._updates_before
        backend.training_steps += 1
        match = rf"{made_by_device + 1} updates .* the device has made \[{made_by_device}\]"
        with pytest.raises(BackendError, match=match):
            backend.proof()
        backend.training_steps -= 1
        backend.proof()

    def test_a_session_that_was_replaced(self):
        backend = made("RDU")
        backend.trainer = backend.network
        with pytest.raises(BackendError, match="instead of a session of sambaflow"):
            backend.train_step(batch_of(2), 1e-3)

    def test_a_network_that_was_moved(self):
        backend = made("CPU")
        elsewhere = torch.zeros(2, 3, 8, 16, device="meta")
        backend._forward = lambda image: (elsewhere,) * 3
        with pytest.raises(BackendError, match="CPU mode ran on meta, not on cpu"):
            backend.train_step(batch_of(2), 1e-3)
        assert backend.training_steps == 0


def test_ipu_needs_the_loss_in_forward(monkeypatch):
    class Forgotten(torch.nn.Module):
        def __init__(self, network, loss, mark):
            super().__init__()
            self.network = network

        def forward(self, image, label):
            return (*self.network(image), label.float().mean())

    monkeypatch.setattr("cosmictagger.backends.ipu.LossInForward", Forgotten)
    with pytest.raises(BackendError, match=r"IPU mode cannot go on: .*loss"):
        made("IPU").train_step(batch_of(2), 1e-3)


@pytest.mark.parametrize("mode", ["CPU", "IPU"])
def test_accumulated_gradients_are_averaged(mode):
    """Without statistics over a batch, two halves of one are the same as the whole."""

    def losses(accumulation, micro_batch):
        torch.manual_seed(1)
        network = PlaneNet()
        network.layers[1] = torch.nn.Identity()
        backend = create(
            network,
            Loss("none"),
            Settings(
                mode=ComputeMode[mode if accumulation > 1 else "CPU"],
                micro_batch=micro_batch,
                optimizer=Optimizer(gradient_accumulation=accumulation, name=OptimizerKind.rmsprop),
            ),
        )
        return trained(backend, 4, rows=4)

    assert losses(2, 2) == pytest.approx(losses(1, 4), abs=2e-5)


@pytest.mark.parametrize(
    ("mode", "precision", "dtype"),
    [
        ("CPU", "bfloat16", torch.bfloat16),
        ("CPU", "mixed", torch.float32),
        ("IPU", "float16", torch.float16),
    ],
)
def test_lower_precision_is_applied(mode, precision, dtype):
    exact = trained(made("CPU"), 3)
    backend = made(mode, precision=Precision[precision])
    losses = trained(backend, 3)
    assert losses == pytest.approx(exact, abs=0.05)
    assert losses != exact
    content = backend.state_dict()
    assert content["state_dict"]["layers.0.weight"].dtype is dtype
    assert backend.proof().precision == precision
    backend.load_state_dict(content)
    assert trained(backend, 1, first=3)[0] < 10


@pytest.mark.parametrize(
    ("mode", "precision", "match"),
    [
        ("CPU", "float16", "would all vanish in float16.*mixed or bfloat16"),
        ("IPU", "mixed", "IPU mode has float32 and float16"),
        ("IPU", "bfloat16", "IPU mode has float32 and float16"),
        ("RDU", "float16", "RDU mode has float32 and bfloat16"),
        ("RDU", "mixed", "RDU mode has float32 and bfloat16"),
    ],
)
def test_precisions_that_are_refused(mode, precision, match):
    with pytest.raises(ConfigError, match=match):
        made(mode, precision=Precision[precision])


def test_float16_scores_where_nothing_is_trained():
    half = made("CPU", training=False, precision=Precision.float16)
    assert half.network.layers[0].weight.dtype is torch.float16
    exact = made("CPU", training=False)
    loss, expected = (backend.evaluate_step(batch_of(2)).loss for backend in (half, exact))
    assert loss == pytest.approx(float(expected), abs=0.02)
    assert loss != expected


def test_rdu_does_not_accumulate():
    with pytest.raises(ConfigError, match="updates after every batch"):
        made("RDU", optimizer=Optimizer(gradient_accumulation=2))


def test_batches_of_another_size():
    backend = made()
    with pytest.raises(BackendError, match="takes 2 images with labels, found 3 with labels"):
        backend.train_step(batch_of(3), 1e-3)
    with pytest.raises(BackendError, match="found 2 without labels"):
        backend.train_step(dataclasses.replace(batch_of(2), label=None), 1e-3)
    with pytest.raises(BackendError, match="1 to 2 images, found 3"):
        backend.evaluate_step(batch_of(3))
    with pytest.raises(BackendError, match="without an optimizer"):
        made(training=False).train_step(batch_of(2), 1e-3)


class TestOptimizers:
    """Those of version 2.1, in every mode."""

    @pytest.fixture(autouse=True)
    def _interpreted(self, monkeypatch):
        monkeypatch.setenv("ABELE_TARGET", "reference")

    @pytest.mark.parametrize("kind", OptimizerKind, ids=lambda kind: kind.name)
    def test_every_mode_updates_alike_and_goes_on_in_another_and_back(self, kind, tmp_path):
        optimizer = Optimizer(name=kind, weight_decay=0.01)
        modes = ("CPU", "IPU", "RDU")
        plain, *others = (made(mode, tmp_path, optimizer=optimizer) for mode in modes)
        losses = trained(plain, 3)
        weights, state = (plain.state_dict()[name] for name in ("state_dict", "optimizer"))
        assert list(state) == [kind.name]
        for number, backend in enumerate(others):
            assert trained(backend, 3) == pytest.approx(losses, abs=1e-5)
            content = backend.state_dict()
            close = {"atol": 1e-4, "rtol": 1e-3}
            torch.testing.assert_close(dict(content["state_dict"]), dict(weights), **close)
            torch.testing.assert_close(content["optimizer"], state, **close)
            there = made(optimizer=optimizer)
            there.load_state_dict(content)
            first = 10 * number
            assert trained(there, 3, first=first) == trained(backend, 3, first=first)
            backend.load_state_dict(there.state_dict())
            assert trained(there, 3, first=first) == trained(backend, 3, first=first)
            backend.proof()  # where the device counts updates, it has counted these
            again = made(backend.settings.mode.name, tmp_path, optimizer=optimizer)
            again.load_state_dict(backend.state_dict())
            assert trained(again, 3, first=30) == trained(backend, 3, first=30)
            again.proof()
            for each in (backend, again):
                each.close()

    @pytest.mark.parametrize("kind", OptimizerKind, ids=lambda kind: kind.name)
    def test_weights_decay(self, kind):
        backends = [made(optimizer=Optimizer(name=kind, weight_decay=w)) for w in (0.0, 0.1)]
        for backend in backends:
            trained(backend, 3)
        free, decayed = (backend.network.layers[3].weight for backend in backends)
        assert not torch.equal(free, decayed)

    def test_the_first_update_of_lamb_by_hand(self):
        """Without bias correction it is 0.1 g / sqrt(0.001 g^2), scaled to the weights' norm."""
        backend = made(optimizer=Optimizer(name=OptimizerKind.lamb))
        before = backend.network.layers[3].weight.detach().clone()
        backend.train_step(batch_of(2), 0.5)
        weight = backend.network.layers[3].weight
        expected = before - 0.5 * before.norm() / before.numel() ** 0.5 * weight.grad.sign()
        torch.testing.assert_close(weight, expected, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("kind", OptimizerKind, ids=lambda kind: kind.name)
    def test_ipu_mode_in_float16(self, kind):
        backend = made("IPU", optimizer=Optimizer(name=kind), precision=Precision.float16)
        plain = made(optimizer=Optimizer(name=kind))
        assert trained(backend, 3) == pytest.approx(trained(plain, 3), abs=0.05)
        assert float(backend.state_dict()["optimizer"]["scaling"]) >= 1024
        backend.close()

    def test_the_kind_of_a_state_of_the_original(self):
        """LAMB's state has the names of Adam's; of its groups only Adam's have amsgrad."""
        for kind, other in (("adam", "lamb"), ("adadelta", "rmsprop"), ("rmsprop", "adadelta")):
            backend = made(optimizer=Optimizer(name=OptimizerKind[kind]))
            trained(backend, 1)
            content = {
                "state_dict": backend.state_dict()["state_dict"],
                "optimizer": torch.optim.Optimizer.state_dict(backend._optimizer),
            }
            backend.load_state_dict(content)
            another = made(optimizer=Optimizer(name=OptimizerKind[other]))
            with pytest.raises(BackendError, match=f"trained with {kind}, .*name={other}"):
                another.load_state_dict(content)

    def test_a_kind_without_state_is_known_again(self):
        backend = made(optimizer=Optimizer(name=OptimizerKind.sgd))
        assert backend.state_dict()["optimizer"] == {}
        trained(backend, 2)
        with pytest.raises(BackendError, match=r"trained with sgd, this run asks for .*name=adam"):
            made().load_state_dict(backend.state_dict())
