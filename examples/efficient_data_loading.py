"""Keep the device busy: four ways of loading the same data, measured.

Every row costs the host some work, as decoding a picture would. Worker processes, and a ring of
shared memory that is filled in advance, let host and device work at the same time. Rows that only
index tensors need neither: the loader fetches them batch by batch. The last line says what bounded
the run.
"""

import argparse
import time

import torch

import poptorch
from poptorch import DataLoaderMode

WAYS = {
    "in the training process": {},
    "2 workers": {"num_workers": 2},
    "Async, 2 workers": {"num_workers": 2, "mode": DataLoaderMode.Async},
    "AsyncRebatched, 2 workers": {"num_workers": 2, "mode": DataLoaderMode.AsyncRebatched},
}


class Costly(torch.utils.data.Dataset):
    """Rows that take the host some time to make."""

    def __init__(self, rows: int):
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        x = torch.full((64,), index / self.rows)
        for _ in range(40):
            x = torch.sin(x + 0.1)
        return x


def rows_per_second(dataset: Costly, loading: dict) -> float:
    options = poptorch.Options().deviceIterations(4).showCompilationProgressBar(False)
    loader = poptorch.DataLoader(options, dataset, batch_size=16, shuffle=True, **loading)
    model = poptorch.inferenceModel(torch.nn.Linear(64, 64), options)
    for _ in range(2):  # the first epoch compiles and starts the workers
        started = time.perf_counter()
        for x in loader:
            model(x)
        seconds = time.perf_counter() - started
    loader.terminate()
    return len(loader) * loader.combinedBatchSize / seconds


if __name__ == "__main__":  # workers import this file
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=8192, help="rows of the data set")
    dataset = Costly(parser.parse_args().rows)
    print(f"{'loading':<28}{'rows/s':>8}")
    for name, loading in WAYS.items():
        print(f"{name:<28}{rows_per_second(dataset, loading):>8.0f}")
