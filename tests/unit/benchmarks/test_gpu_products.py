"""Products of layers are measured; without a GPU with a clock that only runs them."""

import contextlib
import json
import sys

import pytest
import torch
from benchmarks import gpu_products, gpu_records


@pytest.fixture(name="pretended")
def _pretended(monkeypatch):
    sizes = []

    def microseconds(works):
        sizes.append([getattr(work(), "shape", None) for work in works])
        return [2.0, 1.0]

    def together(works):
        for work in works:
            work()

    monkeypatch.setattr(gpu_products, "microseconds", microseconds)
    monkeypatch.setattr(gpu_products, "together", together)
    monkeypatch.setattr(gpu_products.gemms, "using", lambda name: contextlib.nullcontext())
    monkeypatch.setattr(gpu_products, "_by", lambda library, work: work())
    return sizes


def test_the_products_of_a_layer_are_its_result_and_two_gradients(pretended):
    answer = gpu_products.measured(4, 3, 5, device="cpu")
    assert pretended == [[(4, 5)] * 2, [(4, 3)] * 2, [(5, 3)] * 2, [None] * 2]
    assert {*map(tuple, answer.values())} == {(2.0, 1.0)}


def test_a_record_has_every_layer(monkeypatch, capsys, tmp_path):
    both = {"forward": [2.0, 1.0], "both gradients": [4.0, 3.0]}
    monkeypatch.setattr(gpu_products, "measured", lambda *sizes: both)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_records.harness, "environment", dict)
    monkeypatch.setattr(gpu_records.ways, "plain_float32", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_products", "--out", str(tmp_path)])
    assert gpu_products.main() == 0
    layers = json.loads((tmp_path / "products.json").read_text())["products"]
    assert list(layers) == [name for name, *_ in gpu_products.LAYERS]
    assert "one after the other 4.0, side by side 3.0" in capsys.readouterr().out
