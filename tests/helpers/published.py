"""Networks of published sizes, without data in their weights, and where they were placed.

Placements are those of the original vendor's example configurations: modules at which stages begin,
with the number of their device.
"""

import dataclasses

import torch

import poptorch

nn, functional = torch.nn, torch.nn.functional


class Layer(nn.Module):
    """One layer of a transformer; its result is kept, the rest computed again."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(-1, -2) * 0.125, -1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        x = self.first(x + self.out(mixed))
        x = self.second(x + self.down(functional.gelu(self.up(x))))
        return poptorch.recomputationCheckpoint(x)


class Language(nn.Module):
    """Words in, words out, with one table for both."""

    def __init__(self, layers, width, heads, words, length, predicted):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.length, self.predicted = length, predicted

    def forward(self, ids, labels):
        x = self.words(ids) + self.places(torch.arange(self.length))
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x[:, : self.predicted]).flatten(0, 1)
        return functional.cross_entropy(scores, labels[:, : self.predicted].flatten())


class Vision(nn.Module):
    """Patches of pictures through a transformer."""

    def __init__(self, layers, width, heads):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, 1000)

    def forward(self, images, labels):
        x = self.patches(images).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x.mean(1)), labels)


class Bottleneck(nn.Module):
    """A residual block of three convolutions; in the last group each of their results is kept."""

    def __init__(self, before, width, stride, keeps):
        super().__init__()
        sizes = ((before, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, k, stride=s, padding=k // 2, bias=False) for a, b, k, s in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _, _ in sizes)
        self.short = nn.Identity()
        if before != 4 * width:
            short = nn.Conv2d(before, 4 * width, 1, stride=stride, bias=False)
            self.short = nn.Sequential(short, nn.BatchNorm2d(4 * width))
        self.keeps = keeps

    def forward(self, x):
        keep = poptorch.recomputationCheckpoint if self.keeps else (lambda value: value)
        y = x
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = keep(norm(keep(conv(y))))
            y = torch.relu(y) if index < 2 else y
        return torch.relu(poptorch.recomputationCheckpoint(y + self.short(x)))


class ResNet50(nn.Module):
    """Pictures of 224 x 224."""

    def __init__(self):
        super().__init__()
        self.begin = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(64)
        blocks, before = [], 64
        for group, count in enumerate((3, 4, 6, 3)):
            for index in range(count):
                stride = 2 if group and not index else 1
                blocks.append(Bottleneck(before, 64 << group, stride, keeps=group == 3))
                before = 256 << group
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(2048, 1000)

    def forward(self, images, labels):
        x = functional.max_pool2d(torch.relu(self.norm(self.begin(images))), 3, 2, 1)
        return functional.cross_entropy(self.head(self.blocks(x).mean((2, 3))), labels)


@dataclasses.dataclass(frozen=True)
class Published:
    """A network, its micro-batch and its devices.

    Attributes:
        make: the network, on the meta device.
        micro_batch: rows of a micro-batch.
        row: shape of an input; of tokens if it has one dimension.
        layers: how many each device has; empty where there is one device.
        away: the optimizer's state is in another memory.
    """

    make: object
    micro_batch: int
    row: tuple
    layers: tuple = ()
    away: bool = True

    @property
    def devices(self):
        return len(self.layers) or 1

    @property
    def begins(self):
        """Module and device of each stage but the first."""
        done, stages = 0, []
        for device, count in enumerate(self.layers):
            if count and device:
                stages.append((f"layers.{done}", device))
            done += count
        # Both use the table of words, so the last stage is where the first one is.
        return [*stages, ("head", 0)] if len(self.row) == 1 else stages


def language(layers, width, heads, words, length, predicted):
    return lambda: Language(layers, width, heads, words, length, predicted)


PUBLISHED = {
    "BERT-base": Published(language(12, 768, 12, 30522, 128, 20), 32, (128,), layers=(0, 4, 4, 4)),
    "BERT-large": Published(language(24, 1024, 16, 30522, 128, 20), 8, (128,), layers=(3, 7, 7, 7)),
    "GPT-2 large": Published(
        language(36, 1280, 20, 50257, 1024, 1024),
        1,
        (1024,),
        layers=(0, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 2),
    ),
    "ViT base": Published(
        lambda: Vision(12, 768, 12), 17, (3, 224, 224), layers=(3, 3, 3, 3), away=False
    ),
    "ResNet-50": Published(ResNet50, 18, (3, 224, 224), away=False),
}
# As many micro-batches as fill the pipeline; more change nothing in memory.
ACCUMULATION = 40


def wrapped(name):
    """The wrapped network and arguments of a call; memory of weights is asked for, not used."""
    published = PUBLISHED[name]
    with torch.device("meta"):
        model = published.make().half()
    tokens = len(published.row) == 1
    model = model.to_empty(device="cpu")
    if tokens:  # emptying has parted what is one
        model.head.weight = model.words.weight
    count = ACCUMULATION if published.layers else 2
    options = poptorch.Options().autoRoundNumIPUs(True)
    options.Training.gradientAccumulation(count)
    place = poptorch.TensorLocationSettings().useOnChipStorage(not published.away)
    options.TensorLocations.setOptimizerLocation(place)
    half = {"accum_type": torch.float16}
    if tokens:
        optimizer = poptorch.optim.AdamW(model.parameters(), **half)
    else:
        optimizer = poptorch.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=False,
            velocity_accum_type=torch.float16, **half,
        )  # fmt: skip
    rows = count * published.micro_batch
    kind = torch.long if tokens else torch.half
    inputs = torch.zeros(1, dtype=kind).expand(rows, *published.row)
    labels = torch.zeros(1, dtype=torch.long).expand(rows, *published.row[:1] if tokens else ())
    return poptorch.trainingModel(model, options, optimizer), (inputs, labels)
