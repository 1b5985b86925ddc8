"""Turns a photograph of a garment into what the network was trained on.

In: an image file. Out: float32 [1, 1, 28, 28], grey, on black. Needs pillow, not poptorch.
"""

from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageOps, UnidentifiedImageError
from torch import Tensor

from data.in_memory import normalise

SIDE = 28  # pixels
_LIGHT = 200  # a corner brighter than this is taken for a light background


def open_photo(path: str | Path) -> Image.Image:
    """Open an image file as RGB.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not an image.
    """
    try:
        return Image.open(path).convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(
            f"The photograph {path} does not exist. Check the path, or leave --photo away to use "
            "the picture that comes with the program."
        ) from None
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not an image that pillow can read ({error}).") from error


def shrink(photo: Image.Image) -> Image.Image:
    """Resize to 28 x 28, make it grey and put the garment on black.

    The pictures of the training set have a black background; on a light one the network sees the
    garment's negative.
    """
    # Resize first, then grey: the other order rounds differently.
    small = ImageOps.grayscale(photo.resize((SIDE, SIDE)))
    return ImageOps.invert(small) if small.getpixel((1, 1)) > _LIGHT else small


def to_tensor(small: Image.Image) -> Tensor:
    """Return a 28 x 28 grey image as a batch of one, float32 [1, 1, 28, 28] in -1..1."""
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return normalise(pixels).view(1, 1, SIDE, SIDE)


def draw_trousers() -> Image.Image:
    """Draw dark trousers on a light wall, 400 x 600, in place of a photograph."""
    scene = Image.new("RGB", (400, 600), (236, 234, 228))
    pen = ImageDraw.Draw(scene)
    cloth, seam, metal = (38, 44, 66), (20, 24, 38), (196, 170, 110)
    half = [(282, 50), (312, 250), (346, 560), (240, 560), (202, 255)]
    pen.polygon([*half, *((400 - x, y) for x, y in reversed(half))], fill=cloth)
    pen.rectangle((116, 50, 284, 78), fill=seam)
    pen.line([(200, 78), (200, 250)], fill=seam, width=4)
    for left, right in ((140, 104), (260, 296)):
        pen.line([(left, 80), (right, 150)], fill=seam, width=4)
    for knee in (110, 290):
        pen.line([(knee + (200 - knee) // 4, 300), (knee, 550)], fill=(58, 66, 92), width=8)
    pen.ellipse((193, 57, 207, 71), fill=metal)
    return scene
