"""The heads for event labels and vertices: parameters, losses, gradients, and every mode."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

import poptorch
from cosmictagger import checkpoints, models
from cosmictagger.config.keys import Optimizer, Precision
from cosmictagger.errors import BackendError, CheckpointError
from cosmictagger.measures import Loss, parted
from helpers import cosmic_heads, instances
from helpers.cosmic_heads import BOTH, EVENT, SIZE, VERTEX, built, events, made, network, steps
from helpers.cosmic_small import batch_of

HEADS = [BOTH, {"classification": EVENT}, {"vertex": VERTEX}]
IDS = ["both", "event label", "vertex"]


def outputs_of(rows, boxes=(4, 8), seed=0):
    random = torch.Generator().manual_seed(seed)
    planes = [torch.randn(rows, 3, *SIZE, generator=random) for _ in range(3)]
    event = torch.randn(rows, 4, generator=random)
    vertices = [torch.rand(rows, 3, *boxes, generator=random) for _ in range(3)]
    return [each.requires_grad_() for each in (*planes, event, *vertices)]


def test_names_and_counts_are_those_of_the_original():
    sizes = {"depth": 3, "n_initial_filters": 16, "growth_rate": "multiplicative"}
    head = {"active": True, "n_filters": 8, "n_layers": 2}
    styles = {"block_style": "residual", "normalization": "batch"}
    module = models.build(
        network(**sizes, **styles, classification=head, vertex=head | {"depth": 2}), (16, 16)
    )
    counts = {}
    for name, value in module.named_parameters():
        counts.setdefault(name.split(".")[0], []).append(value.numel())
    blocks = 2 * 2 * (8 * 8 * 9 + 8 + 2 * 8)  # two residual blocks of two convolutions
    assert sum(counts["classifier_input"]) == 3 * 16 * 2**3 * 8 + 8
    assert sum(counts["vertex_input"]) == 16 * 2 ** (3 - 2) * 8 + 8
    assert sum(counts["classifier"]) == sum(counts["vertex_layers"]) == blocks
    assert sum(counts["bottleneck_classifer"]) == 8 * 4 + 4
    assert sum(counts["bottleneck_vertex"]) == 8 * 3 + 3
    names = list(module.state_dict())
    assert "classifier.blocks.0.convolution_1.conv.weight" in names
    assert "vertex_layers.blocks.1.convolution_2.norm.running_mean" in names
    _, event, boxes = parted(module(torch.rand(2, 3, 16, 16)))
    assert event.shape == (2, 4)
    assert [each.shape for each in boxes] == [(2, 3, 8, 8)] * 3
    assert all(bool((each > 0).all() and (each < 1).all()) for each in boxes)


@pytest.mark.parametrize("depth", [0, 1])
def test_the_vertex_head_reads_the_level_that_was_asked_for(depth):
    module = built(vertex=VERTEX | {"depth": depth})
    *_, box = module(torch.rand(1, 3, *SIZE))
    assert box.shape[2:] == (SIZE[0] >> (1 - depth), SIZE[1] >> (1 - depth))


@pytest.mark.parametrize("heads", HEADS, ids=IDS)
def test_heads_leave_the_rest_of_the_network_as_it_is(heads):
    image, plain, module = torch.rand(2, 3, *SIZE), built(), built(**heads)
    for name, value in plain.state_dict().items():
        assert torch.equal(module.state_dict()[name], value)
    wanted, outputs = plain(image), module(image)
    assert len(wanted) == 3
    assert all(map(torch.equal, outputs[:3], wanted))
    label = batch_of(2, size=SIZE).label
    without, unused = models.LossInForward(plain, Loss("focal")), network()
    assert len(without(image, label)) == 4
    assert torch.equal(Loss("focal", unused)(wanted, label), Loss("focal")(wanted, label))


def test_what_heads_give_is_what_their_layers_compute():
    module = built(**BOTH).double()
    image = torch.rand(1, 3, *SIZE, dtype=torch.float64)
    seen = []
    planes = tuple(module.initial_convolution(plane) for plane in image.chunk(3, dim=1))
    module.net_core(planes, seen)
    _, event, boxes = parted(module(image))
    x = module.classifier(module.classifier_input(torch.cat(seen[0], dim=1)))
    x = module.bottleneck_classifer(x)
    wanted = torch.stack([x[0, label].sum() / x[0, label].numel() for label in range(4)])
    torch.testing.assert_close(event[0], wanted)
    for box, plane in zip(boxes, seen[1], strict=True):
        y = module.bottleneck_vertex(module.vertex_layers(module.vertex_input(plane)))
        torch.testing.assert_close(box, 1 / (1 + (-y).exp()))


def loops(outputs, batch, event, vertex):
    """The losses of both heads, number by number."""
    logits, boxes = outputs[3].tolist(), [each.tolist() for each in outputs[4:]]
    entropies, detection, place = [], [], 0.0
    for row, label in enumerate(batch.event_label.tolist()):
        odds = [math.exp(value) for value in logits[row]]
        entropies.append(-math.log(odds[label] / sum(odds)))
        for plane in range(3):
            score, down, right = boxes[plane][row]
            height, width = len(score), len(score[0])
            at = [float(value) for value in batch.vertex[row, plane]]
            box = (int(at[0] * height), int(at[1] * width))
            total = 0.0
            for i in range(height):
                for j in range(width):
                    true = label != 3 and (i, j) == box
                    p = score[i][j] if true else 1 - score[i][j]
                    total += vertex.l_det * (1 - p) ** 2 * -math.log(p)
                    if true:
                        off = (at[0] * height - i - down[i][j], at[1] * width - j - right[i][j])
                        place += off[0] ** 2 + off[1] ** 2
            detection.append(total)
    return [
        event.weight * sum(entropies) / len(entropies),
        vertex.weight * 3 * sum(detection) / len(detection),
        vertex.weight * 3 * vertex.l_coord * place,
    ]


def test_losses_of_heads_number_by_number():
    changed = {"weight": 2.0, "l_det": 0.3, "l_coord": 0.7}
    config = network(classification=EVENT | {"weight": 0.5}, vertex=VERTEX | changed)
    loss, batch, outputs = Loss("light", config), events(4), outputs_of(4)
    targets = batch.label, batch.event_label, batch.vertex
    parts = [each.detach() for each in loss.parts(outputs, *targets)]
    assert loss.names == ("segmentation", "event_label", "vertex/detection", "vertex/localization")
    assert torch.equal(parts[0], Loss("light")(outputs[:3], batch.label))
    wanted = loops(outputs, batch, config.classification, config.vertex)
    assert [float(each) for each in parts[1:]] == pytest.approx(wanted, rel=1e-5)
    whole = loss(outputs, *targets).detach()
    assert float(whole) == pytest.approx(float(parts[0]) + sum(wanted), rel=1e-5)
    assert len({round(each, 6) for each in wanted}) == 3


def test_the_focal_factor_of_detection_is_in_its_gradient():
    config = network(vertex=VERTEX)
    batch = events(1)  # without a neutrino: each box is empty
    outputs = outputs_of(1)
    del outputs[3]
    _, detection, place = Loss("none", config).parts(
        outputs, batch.label, batch.event_label, batch.vertex
    )
    detection.backward()
    score = outputs[-1].detach()[:, 0]
    wanted = 0.1 * (-2 * score * (1 - score).log() + score**2 / (1 - score))
    torch.testing.assert_close(outputs[-1].grad[:, 0], wanted)
    assert not outputs[-1].grad[:, 1:].any()
    assert place.item() == 0


def test_scores_that_are_certain_give_finite_losses():
    batch, outputs = events(2), [each.detach() for each in outputs_of(2)]
    loss = Loss("none", network(**BOTH))
    for certain in (0.0, 1.0):
        last = torch.full_like(outputs[-1], certain).requires_grad_()
        value = loss((*outputs[:-1], last), batch.label, batch.event_label, batch.vertex)
        value.backward()
        assert value.isfinite()
        assert last.grad.isfinite().all()


@pytest.mark.parametrize("head", ["classification", "vertex"])
@pytest.mark.parametrize("detach", [True, False])
def test_gradients_flow_into_the_network_unless_detached(head, detach):
    config = network(**{head: BOTH[head] | {"detach": detach}})
    module, batch = built(**{head: BOTH[head] | {"detach": detach}}), events(2)
    loss = Loss("none", config)
    targets = [getattr(batch, name) for name in loss.targets]
    sum(loss.parts(module(batch.image), *targets)[1:]).backward()
    prefixes = {"classification": ("classifier", "bottleneck_classifer")}
    own = prefixes.get(head, ("vertex", "bottleneck_vertex"))
    for name, value in module.named_parameters():
        reached = value.grad is not None and bool(value.grad.any())
        if name.startswith(own):
            assert value.grad is not None, name
        elif detach:
            assert not reached, name
    assert (module.initial_convolution.conv.weight.grad is not None) is not detach


def same(results, wanted, **tolerance):
    for result, other in zip(results, wanted, strict=True):
        assert list(result.parts) == list(other.parts)
        for field in ("loss", "logits", "event_label", "vertex", "parts"):
            value, target = getattr(result, field), getattr(other, field)
            torch.testing.assert_close(value, target, **tolerance)


@pytest.mark.parametrize("mode", ["IPU", "RDU"])
@pytest.mark.parametrize(
    "heads", [BOTH, *(pytest.param(each, marks=pytest.mark.long) for each in HEADS[1:])]
)
def test_every_mode_takes_the_steps_of_cpu_mode(mode, heads, tmp_path):
    plain, device = made("CPU", tmp_path, heads), made(mode, tmp_path, heads)
    wanted, results = steps(plain), steps(device)
    bitwise = {"rtol": 0, "atol": 0} if mode == "IPU" else {"rtol": 1e-4, "atol": 1e-5}
    same(results, wanted, **bitwise)
    first = results[0]
    assert (first.event_label is None) == ("classification" not in heads)
    assert (first.vertex is None) == ("vertex" not in heads)
    assert float(sum(first.parts.values())) == pytest.approx(float(first.loss), rel=1e-6)
    weights, others = plain.state_dict()["state_dict"], device.state_dict()["state_dict"]
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, **bitwise)
    fewer = [backend.evaluate_step(events(1, seed=9)) for backend in (device, plain)]
    same(fewer[:1], fewer[1:], rtol=1e-4, atol=1e-5)
    assert {len(each) for each in (fewer[0].logits[0], *(fewer[0].vertex or ()))} == {1}
    unlabelled = dataclasses.replace(events(2), event_label=None)
    assert device.evaluate_step(unlabelled).loss is None
    assert device.evaluate_step(unlabelled).parts == {}
    with pytest.raises(BackendError, match=r"images with labels, event labels.* found 2 without"):
        device.train_step(unlabelled, 1e-3)
    device.close()


@pytest.mark.long
def test_torch_compile_needs_no_break():
    module = models.LossInForward(built(**BOTH), Loss("focal", network(**BOTH)))
    batch = events(2)
    arguments = batch.image, batch.label, batch.event_label, batch.vertex
    wanted = module(*arguments)
    assert len(wanted) == 3 + 1 + 3 + 4 + 1
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for result, value in zip(compiled(*arguments), wanted, strict=True):
        torch.testing.assert_close(result, value)


@pytest.mark.parametrize("precision", ["mixed", "bfloat16"])
def test_heads_in_low_precision_of_cpu_mode(tmp_path, precision):
    wanted = steps(made("CPU", tmp_path), count=1)[0]
    (result,) = steps(made("CPU", tmp_path, precision=Precision[precision]), count=1)
    for name, value in wanted.parts.items():
        assert result.parts[name].dtype == torch.float32
        assert result.parts[name].item() == pytest.approx(value.item(), rel=0.05, abs=1e-3)


def test_compiled_steps_with_both_heads(tmp_path, monkeypatch):
    monkeypatch.delenv("ABELE_TARGET")  # a processor's programs
    monkeypatch.setenv("ABELE_START", "wait")
    styles = BOTH | {"block_style": "convnext", "normalization": "instance"}
    device = made("IPU", tmp_path, styles)
    same(steps(device), steps(made("CPU", tmp_path, styles)), rtol=1e-3, atol=1e-4)
    assert device.proof().compiled_steps == 2
    device.close()


def test_accumulated_and_replicated_steps(tmp_path):
    """Parts of the loss are means over micro-batches, as the loss is."""
    optimizer = Optimizer(gradient_accumulation=2)
    plain = made("CPU", tmp_path, optimizer=optimizer)
    device = made("IPU", tmp_path, optimizer=optimizer)
    replicas = made("IPU", tmp_path, replicas=2)
    wanted = steps(plain, rows=4)
    same(steps(device, rows=4), wanted, rtol=1e-5, atol=1e-6)
    # Each replica has batch statistics of its own: the first step alone is the same.
    same(steps(replicas, rows=4, count=1), wanted[:1], rtol=1e-4, atol=1e-5)
    assert wanted[0].event_label.shape == (4, 4)
    for backend in (device, replicas):
        backend.close()


def test_processes_train_the_heads_together(tmp_path):
    """Two processes with two micro-batches are one process with four."""
    more = {"micro_batch": 1, "optimizer": Optimizer(gradient_accumulation=4)}
    plain = made("CPU", tmp_path, cosmic_heads.WITHOUT_NORM, **more)
    wanted = steps(plain, rows=4)
    instances.run(Path(cosmic_heads.__file__), [str(tmp_path)], 2)
    shared = torch.load(tmp_path / "shared.pt")
    for parts, result in zip(shared["parts"], wanted, strict=True):
        assert parts == pytest.approx([float(each) for each in result.parts.values()], rel=1e-5)
    for name, value in plain.network.named_parameters():
        torch.testing.assert_close(shared["weights"][name], value, rtol=1e-4, atol=1e-5)


class AsBefore(torch.nn.Module):
    """Network and loss of pixels alone, put together by hand."""

    def __init__(self):
        super().__init__()
        self.network, self.loss = built(), Loss("focal")

    def forward(self, image, label):
        scores = self.network(image)
        return (*scores, poptorch.identity_loss(self.loss(scores, label), reduction="mean"))


def test_programs_without_heads_are_as_before(tmp_path):
    device = made("IPU", tmp_path, {})
    batch = batch_of(2, size=SIZE)
    result = device.train_step(batch, 1e-2)
    assert (result.event_label, result.vertex, result.parts) == (None, None, {})
    module = AsBefore()
    optimizer = poptorch.optim.Adam(module.parameters(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8)
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    step = poptorch.trainingModel(module, options, optimizer=optimizer)
    *scores, loss = step(batch.image, batch.label)
    assert torch.equal(loss, result.loss)
    assert all(map(torch.equal, scores, result.logits))
    assert step.executable_hash == device.trainer.executable_hash
    device.close()
    step.destroy()


def test_heads_in_half_precision(tmp_path):
    device = made("IPU", tmp_path, precision=Precision.float16)
    wanted = steps(made("CPU", tmp_path), count=1)[0]
    (result,) = steps(device, count=1)
    assert float(result.loss) == pytest.approx(float(wanted.loss), rel=0.02)
    device.close()


def test_a_checkpoint_without_heads_names_what_is_missing(tmp_path):
    path = tmp_path / "model-1.ckpt"
    torch.save({"global_step": 1, "state_dict": built().state_dict()}, path)
    weights = checkpoints.load(path)["state_dict"]
    with pytest.raises(CheckpointError, match=r"missing \(classifier_input.*lacks heads.*active"):
        checkpoints.check_fits(weights, built(**BOTH), path)
    torch.save({"global_step": 1, "state_dict": built(**BOTH).state_dict()}, path)
    weights = checkpoints.load(path)["state_dict"]
    checkpoints.check_fits(weights, built(**BOTH), path)
    with pytest.raises(CheckpointError, match=r"unknown \(classifier_input.*has heads.*active"):
        checkpoints.check_fits(weights, built(), path)
