"""Plain PyTorch on a photograph: preparation, command line, and the tutorial's own weights."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("PIL", reason="pillow is an optional extra: pip install abele[demo]")

import classify
from data import CLASSES
from garment_model import ClassificationModel, load_weights
from helpers.warm_python import python
from photograph import draw_trousers, open_photo, shrink, to_tensor

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ABELE_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
TROUSER = CLASSES.index("Trouser")

needs_shared_data = pytest.mark.skipif(
    not ((SHARED / "classifier.pth").is_file() and (SHARED / "trousers.jpg").is_file()),
    reason="classifier.pth and trousers.jpg not found: name their folder in ABELE_SHARED_DATA",
)


@pytest.fixture
def files(tmp_path):
    torch.manual_seed(0)
    torch.save(ClassificationModel().state_dict(), tmp_path / "weights.pth")
    draw_trousers().save(tmp_path / "photo.png")
    return str(tmp_path / "weights.pth"), str(tmp_path / "photo.png")


def test_a_light_background_becomes_black():
    small = shrink(draw_trousers())
    assert (small.size, small.mode) == ((28, 28), "L")
    assert small.getpixel((1, 1)) < 30
    assert shrink(small.convert("RGB")).tobytes() == small.tobytes()


def test_the_tensor_is_normalised():
    tensor = to_tensor(shrink(draw_trousers()))
    assert (tensor.shape, tensor.dtype) == ((1, 1, 28, 28), torch.float32)
    assert -1 <= tensor.min() < tensor.max() <= 1


def test_prints_class_and_json(files, capsys):
    weights, photo = files
    assert classify.main(["--weights", weights, photo]) == 0
    line = capsys.readouterr().out
    assert classify.main(["--weights", weights, "--json", photo]) == 0
    result = json.loads(capsys.readouterr().out)
    assert line.startswith(result["class"])
    assert len(result["log_probabilities"]) == 10


@pytest.mark.parametrize(
    ("swap", "message"),
    [
        ({"photo": "none.png"}, "photograph none.png does not exist"),
        ({"photo": __file__}, "is not an image"),
        ({"weights": "none.pth"}, "weights file none.pth does not exist"),
        ({"weights": __file__}, "does not hold the weights of ClassificationModel"),
    ],
    ids=["no photo", "no image", "no weights", "other file"],
)
def test_wrong_files_are_one_sentence(files, swap, message, capsys):
    weights, photo = swap.get("weights", files[0]), swap.get("photo", files[1])
    assert classify.main(["--weights", weights, photo]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_does_not_import_poptorch():
    program = "import classify, photograph, sys; sys.exit('poptorch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "examples")}
    assert subprocess.run([python(), "-c", program], env=environment).returncode == 0


@needs_shared_data
def test_the_tutorials_weights_name_the_photograph():
    scores = classify.classify(SHARED / "classifier.pth", SHARED / "trousers.jpg")
    assert int(scores.argmax()) == TROUSER
    assert float(scores[TROUSER]) == pytest.approx(-0.01328, abs=1e-4)


@needs_shared_data
@pytest.mark.parametrize("target", ["reference", pytest.param("cpu", marks=pytest.mark.compiler)])
def test_the_tutorials_weights_on_each_target(target, monkeypatch):
    poptorch = pytest.importorskip("poptorch")
    monkeypatch.setenv("ABELE_TARGET", target)
    model = load_weights(ClassificationModel(), SHARED / "classifier.pth")
    inference_model = poptorch.inferenceModel(model, options=poptorch.Options())
    scores = inference_model(to_tensor(shrink(open_photo(SHARED / "trousers.jpg"))))[0]
    assert int(scores.argmax()) == TROUSER
    assert float(scores[TROUSER]) == pytest.approx(-0.01328, abs=1e-4)
    assert inference_model.target == target
