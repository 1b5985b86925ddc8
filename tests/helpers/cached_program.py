"""A program of a user: trains a small model for two steps and reports what happened, as JSON.

Run as a script by test_caching, because the question is what a new process does.
"""

import argparse
import json
import warnings

import torch

import poptorch
from helpers.wrapping import Scorer, rows, sgd

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", help="a folder; default is what the environment says")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--wider", action="store_true")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Scorer()
    if arguments.wider:
        model.fc = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3))
    options = poptorch.Options().showCompilationProgressBar(False)
    if arguments.cache:
        options.enableExecutableCaching(arguments.cache)
    wrapped = poptorch.trainingModel(model, options, sgd(model, lr=arguments.rate))
    outcome = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            losses = [wrapped(*rows(4))[0].item() for _ in range(2)]
            record = wrapped.build_record
            outcome = {"cache": record.cache, "executable": record.executable, "losses": losses}
            outcome["weights"] = [p.tolist() for p in model.parameters()]
        except poptorch.Error as error:
            outcome["error"] = str(error)
    outcome["warnings"] = [
        str(w.message) for w in caught if "cache" in type(w.message).__name__.lower()
    ]
    print(json.dumps(outcome))
