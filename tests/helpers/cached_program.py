"""A program of a user: trains a small model for two steps and reports what happened, as JSON.

Run as a script by test_caching, because the question is what a new process does.
"""

import argparse
import json

import torch

import poptorch
from helpers.wrapping import Scorer, rows, sgd

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", help="a folder; default is what the environment says")
    parser.add_argument("--rate", type=float, default=0.1)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Scorer()
    options = poptorch.Options().showCompilationProgressBar(False)
    if arguments.cache:
        options.enableExecutableCaching(arguments.cache)
    wrapped = poptorch.trainingModel(model, options, sgd(model, lr=arguments.rate))
    losses = [wrapped(*rows(4))[0].item() for _ in range(2)]
    record = wrapped.build_record
    outcome = {"cache": record.cache, "executable": record.executable, "losses": losses}
    print(json.dumps(outcome | {"weights": [p.tolist() for p in model.parameters()]}))
