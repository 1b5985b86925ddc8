"""FLOPs of operators: where their formulas come from."""

import importlib
import sys

import torch

from abele.report import operators


def test_nothing_is_said_of_kernels_that_no_program_has(monkeypatch, caplog):
    name = operators._formulas().__name__
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", None)
    for load, said in ((operators._formulas.__wrapped__, 0), (importlib.import_module, 1)):
        monkeypatch.delitem(sys.modules, name)
        load(*[name] * said)
        assert len(caplog.records) == said
    assert "triton not found" in caplog.text
