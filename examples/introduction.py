"""Train a network to tell garments apart, test it, and show it a photograph of your own.

The program follows PopTorch's introduction step by step:

  1. load 60,000 pictures of garments, 28 x 28 pixels, of ten classes;
  2. define a six-layer network whose forward pass also computes the loss;
  3. train it for five epochs: poptorch.trainingModel makes one compiled program of the forward
     pass, the loss, the backward pass and the weight update, and every call runs one step of it;
  4. save the weights, test the network through poptorch.inferenceModel, draw what it mistakes;
  5. let it name a photograph, on the device and again in plain PyTorch without poptorch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

import poptorch
from data import CLASSES, SOURCES, Datasets, collate, load
from garment_model import ClassificationModel, load_weights

try:
    from sklearn.metrics import accuracy_score

    import pictures
    from photograph import draw_trousers, open_photo, shrink, to_tensor
except ModuleNotFoundError as missing:
    print(f"{missing.name} is missing here: pip install abele[demo]", file=sys.stderr)
    raise SystemExit(2) from None

_EVALUATION_ROWS = 100  # at most so many pictures per call while testing
_AGREEMENT = 1e-4  # largest difference of log-probabilities between device and plain PyTorch


class UsageError(ValueError):
    """The command line asks for something that cannot be done."""


@dataclass(frozen=True, kw_only=True)
class TrainingRecord:
    """What training leaves behind besides the weights."""

    steps_per_s: float
    compile_s: float
    target: str
    executable_hash: str


def train(model: ClassificationModel, datasets: Datasets, args) -> TrainingRecord:
    """Train `model` in place."""
    # Options say how the device runs; a loader and a wrapper made from the same options agree on
    # how many rows one call takes: batch size x device iterations.
    opts = poptorch.Options().deviceIterations(args.device_iterations)
    loader = poptorch.DataLoader(
        opts,
        datasets.train,
        batch_size=args.batch_size,
        shuffle=True,
        # The pictures are in memory and a batch is fetched in one piece, in some 60 microseconds.
        # A worker process would spend more on handing the batch over.
        num_workers=args.num_workers,
        collate_fn=collate,
    )
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    training_model = poptorch.trainingModel(model, options=opts, optimizer=optimizer)

    rates = []
    for epoch in tqdm(range(args.epochs), desc="epochs", disable=None):
        total_loss = torch.zeros(())
        bar = tqdm(loader, desc="batches", leave=False, disable=None)
        for call, (images, labels) in enumerate(bar):
            _, loss = training_model(images, labels)
            total_loss += loss.mean()
            if call == 0:  # the first call of all compiles; no epoch's first call is counted
                start = time.perf_counter()
        counted = (len(loader) - 1) * args.device_iterations
        rates.append(counted / max(time.perf_counter() - start, 1e-9))
        tqdm.write(f"epoch {epoch + 1}: mean loss {total_loss / len(loader):.4f}")

    # Training is over: weights go back into `model`, and the device is free for testing.
    training_model.detachFromDevice()
    return TrainingRecord(
        steps_per_s=statistics.median(rates),
        compile_s=training_model.compilationTime().total_seconds(),
        target=training_model.target,
        executable_hash=training_model.executable_hash,
    )


def save_weights(model: ClassificationModel, path: Path) -> None:
    """Write beside the target and rename: an interrupted run leaves no half file."""
    part = path.with_suffix(".part")
    torch.save(model.state_dict(), part)
    os.replace(part, path)


def evaluate(model: ClassificationModel, datasets: Datasets, out: Path) -> float:
    """Test the network, draw its confusion matrix and return the accuracy in 0..1."""
    opts = poptorch.Options()
    # The loader drops an incomplete last batch; with a batch size that divides, nothing is lost.
    batch_size = largest_divisor(len(datasets.test), _EVALUATION_ROWS)
    loader = poptorch.DataLoader(opts, datasets.test, batch_size=batch_size, collate_fn=collate)
    inference_model = poptorch.inferenceModel(model.eval(), options=opts)
    predictions, labels = [], []
    for images, truth in loader:
        predictions += inference_model(images).argmax(dim=1).tolist()
        labels += truth.tolist()
    inference_model.detachFromDevice()
    pictures.save_confusion(labels, predictions, datasets.classes, out / "confusion_matrix.png")
    return accuracy_score(labels, predictions)


def predict(weights: Path, photo_path: Path, classes: tuple[str, ...], out: Path) -> bool:
    """Names a photograph on the device and in plain PyTorch; returns whether both agree."""
    photo = open_photo(photo_path)
    small = shrink(photo)
    model = load_weights(ClassificationModel(), weights)
    inference_model = poptorch.inferenceModel(model, options=poptorch.Options())
    scores = inference_model(to_tensor(small))[0]
    inference_model.detachFromDevice()
    verdict = classes[int(scores.argmax())]
    pictures.save_before_after(photo, small, verdict, out / "photo_before_after.png")

    plain = classify_without_poptorch(weights, photo_path)
    gap = float((scores - torch.tensor(plain["log_probabilities"])).abs().max())
    agree = verdict == plain["class"] and gap <= _AGREEMENT
    print(f"The photograph {photo_path} shows, on target {inference_model.target}: {verdict}")
    print(f"The same in plain PyTorch, without poptorch: {plain['class']}")
    relation = "agree" if agree else "DISAGREE"
    print(f"Both {relation}: their log-probabilities differ by {gap:.1e} at most.")
    return agree


def classify_without_poptorch(weights: Path, photo: Path) -> dict:
    """Run `classify.py` in a process of its own: the weights need nothing but torch."""
    program = Path(__file__).with_name("classify.py")
    command = [sys.executable, program, "--json", "--weights", weights, photo]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"classify.py failed: {result.stderr.strip()}")
    return json.loads(result.stdout)


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that is not above `limit`."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def parse_arguments(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", default="datasets", type=Path, help="data directory (default: %(default)s)")
    add("--source", default="auto", choices=SOURCES, help="which pictures (default: %(default)s)")
    add("--epochs", default=5, type=int, help="times through the training set (default: 5)")
    add("--batch-size", default=16, type=int, help="pictures per weight update (default: 16)")
    add(
        "--device-iterations",
        default=1,
        type=int,
        help="updates the device does per call; fewer"
        " round trips, but only the last loss of each call comes back (default: 1)",
    )
    add("--train-samples", type=int, help="use only so many training pictures")
    add("--test-samples", type=int, help="use only so many test pictures")
    add(
        "--num-workers",
        default=0,
        type=int,
        help="loader processes; for a data set in memory none is fastest (default: 0)",
    )
    add(
        "--photo",
        type=Path,
        help="a garment on a plain light or black background, worn by nobody"
        " (default: a drawn pair of trousers)",
    )
    add("--weights", type=Path, help="skip training and testing, use these weights on the photo")
    add(
        "--out",
        default=Path("out/introduction"),
        type=Path,
        help="where pictures and weights go (default: %(default)s)",
    )
    add("--seed", default=42, type=int, help="of weights and order of the data (default: 42)")
    return parser.parse_args(argv)


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse what would fail later, before any work is done."""
    for name in ("epochs", "batch_size", "device_iterations", "train_samples", "test_samples"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1; found {value}.")
    if args.num_workers < 0:
        raise UsageError(f"--num-workers must be 0 or more; found {args.num_workers}.")
    if args.photo is not None:
        open_photo(args.photo)
    if args.weights is not None:
        load_weights(ClassificationModel(), args.weights)


def check_batches(num_train: int, args: argparse.Namespace) -> None:
    """Require a training set that is a multiple of the rows of a call."""
    rows = args.batch_size * args.device_iterations
    left = num_train % rows
    if left:
        best = num_train - left or rows
        raise UsageError(
            f"{num_train} training pictures do not divide into calls of {args.batch_size} x "
            f"{args.device_iterations} = {rows} rows: {left} left over. Change --batch-size or "
            f"--device-iterations, or use --train-samples {best}."
        )


def prepare(args: argparse.Namespace) -> Datasets | None:
    """Check everything the user gave; return the pictures, or None where none are needed."""
    check_arguments(args)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.weights is not None:
        return None
    datasets = load(args.data, args.source, args.train_samples, args.test_samples)
    check_batches(len(datasets.train), args)
    return datasets


def train_and_test(datasets: Datasets, args: argparse.Namespace) -> tuple[Path, TrainingRecord]:
    """Run steps 2 to 4; return the weights file and the record of training."""
    pictures.save_samples(datasets.train, datasets.classes, args.out / "sample_images.png")
    model = ClassificationModel()
    model.train()
    print(model)
    record = train(model, datasets, args)
    weights = args.out / "classifier.pth"
    save_weights(model, weights)
    accuracy = evaluate(model, datasets, args.out)
    print(f"Test accuracy: {100 * accuracy:.2f} % of {len(datasets.test)} pictures")
    return weights, record


def main(argv=None) -> int:
    args = parse_arguments(argv)
    torch.manual_seed(args.seed)
    try:
        datasets = prepare(args)
    except (ValueError, OSError) as error:
        print(f"introduction.py: {error}", file=sys.stderr)
        return 2
    weights, record = args.weights, None
    if datasets is not None:
        weights, record = train_and_test(datasets, args)
    photo = args.photo or args.out / "trousers.png"
    if args.photo is None:
        draw_trousers().save(photo)
    agree = predict(weights, photo, CLASSES, args.out)
    print(f"Pictures and weights are in {args.out}.")
    if record is not None:
        print(
            f"{record.steps_per_s:.0f} steps/s (median over epochs), compiled in "
            f"{record.compile_s:.1f} s, target {record.target}, "
            f"executable {record.executable_hash}"
        )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
