"""Says which garment a photograph shows, in plain PyTorch: trained weights run anywhere.

This program does not import poptorch. It needs the weights that `introduction.py` saved.
"""

import argparse
import json
import sys

import torch

from data.fashion_mnist import CLASSES
from garment_model import ClassificationModel, load_weights


def classify(weights, photo) -> torch.Tensor:
    """Log-probabilities of the ten classes, float32 [10]."""
    from photograph import open_photo, shrink, to_tensor

    model = load_weights(ClassificationModel(), weights)
    with torch.inference_mode():
        return model(to_tensor(shrink(open_photo(photo))))[0]


def parse_arguments(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photo", help="a garment on a plain light or black background")
    parser.add_argument(
        "--weights", required=True, help="a file like out/introduction/classifier.pth"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")
    return parser.parse_args(argv)


def main(argv=None) -> int:
    args = parse_arguments(argv)
    try:
        scores = classify(args.weights, args.photo)
    except ModuleNotFoundError as missing:
        print(f"{missing.name} is missing here: pip install abele[demo]", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"classify.py: {error}", file=sys.stderr)
        return 2
    best = int(scores.argmax())
    if args.json:
        print(json.dumps({"class": CLASSES[best], "log_probabilities": scores.tolist()}))
    else:
        print(f"{CLASSES[best]} ({100 * scores[best].exp():.1f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
