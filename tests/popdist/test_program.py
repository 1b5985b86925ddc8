"""A program as they are written for poprun: load, train, validate, save on one instance."""

import logging
import runpy

import pytest
import torch

import poptorch
from helpers.popdist_program import PROGRAM
from helpers.wrapping import rows


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return lambda: runpy.run_path(str(path), {"FOLDER": tmp_path}, run_name="__main__")


def test_the_program_runs_alike_with_and_without_poprun(program, poprun, tmp_path, caplog, capfd):
    saved = []
    for started in (False, True):
        if started:
            poprun(instances=1, local=2)
        with caplog.at_level(logging.INFO):
            result = program()
        assert result["instance"] == 0
        assert result["epochs"][-1] < result["epochs"][0]
        assert result["seen"] == 32
        saved.append(torch.load(tmp_path / "model-0.ckpt", weights_only=True))
        model = result["model"]
        x, y = rows(32)
        with torch.no_grad():
            plain = torch.nn.functional.mse_loss(model(x), y, reduction="sum").item()
        assert result["error"] == pytest.approx(plain, rel=1e-5)
        assert torch.equal(saved[-1]["fc.weight"], model.fc.weight)
        (tmp_path / "model-0.ckpt").unlink()
    assert torch.equal(saved[0]["fc.weight"], saved[1]["fc.weight"])
    assert sum(record.message.startswith("Loss: ") for record in caplog.records) == 6


def test_without_init_the_wrapper_refuses_two_instances(program, poprun, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("    popdist.init()\n", ""))
    poprun(index=0, instances=2, local=1)
    with pytest.raises(poptorch.Error, match="Process 0 of 2 does not know where to meet"):
        program()
