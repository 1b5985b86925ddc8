"""Events that are drawn at random: images of three planes, and the class of each pixel."""

import numpy


class EventFetcher:
    def __init__(self, size, seed):
        self.size = size
        self.random = numpy.random.default_rng(seed)

    def fetch_next_batch(self):
        label = self.random.integers(0, 3, (self.size, 3, 16, 16))
        image = label + self.random.normal(0.0, 0.5, label.shape)
        return {"image": image.astype("float32"), "label": label, "entries": list(range(self.size))}
