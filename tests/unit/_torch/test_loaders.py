"""What torch does not say of a loader's worker processes."""

import torch

from abele._torch.loaders import has_lost_worker


def test_a_worker_that_has_ended_is_noticed():
    loader = torch.utils.data.DataLoader(torch.arange(8), num_workers=2, persistent_workers=True)
    batches = iter(loader)
    assert not has_lost_worker(batches)
    batches._workers[1].kill()
    batches._workers[1].join()
    assert has_lost_worker(batches)
