"""A program for poprun that saves after every step; tests kill its instances. FOLDER EPOCHS."""

import os
import sys
from pathlib import Path

FOLDER, EPOCHS = Path(sys.argv[1]), int(sys.argv[2])
ATTEMPT = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
RANK = os.environ.get("RANK", "0")


def note(event):
    """Tells the test where this process is, from the first moment."""
    path = FOLDER / "notes" / f"{event}-{ATTEMPT}-{RANK}"
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)


def main():
    import torch

    import popdist
    import popdist.poptorch
    import poptorch
    from helpers.checkpointed import Data, Model
    from popdist.checkpoint import Checkpointer

    torch.set_num_threads(1)
    popdist.init()
    torch.manual_seed(1)
    opts = popdist.poptorch.Options().randomSeed(4).showCompilationProgressBar(False)
    opts.Training.gradientAccumulation(2)
    loader = poptorch.DataLoader(opts, Data(noise=0.1), batch_size=2, shuffle=True)
    model = Model()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    training = poptorch.trainingModel(model, opts, optimizer)
    checkpointer = Checkpointer(
        FOLDER / "checkpoints",
        model=training,
        optimizer=optimizer,
        loader=loader,
        scheduler=scheduler,
        every=1,
    )
    started = False
    for _ in checkpointer.epochs(EPOCHS):
        for x, y in checkpointer.batches():
            training(x, y)
            if not started:
                note("going")
                started = True
        scheduler.step()
        training.setOptimizer(optimizer)
    state = {**model.state_dict(), **optimizer.state_dict()["ipu_state"]}
    torch.save(state, FOLDER / f"end-{RANK}.pt")


if __name__ == "__main__":
    note("alive")
    main()
