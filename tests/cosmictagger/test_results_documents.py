"""The page of data and results: its code runs, and runs leave the files that it lists."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from cosmictagger.results.predictions import predictions_writer, scored_event, scores_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cosmictagger_results.md").read_text()


def test_reading_predictions_back(tmp_path, monkeypatch, capsys):
    with predictions_writer(tmp_path / "output/torch/small/first", (4, 6)) as writer:
        scores = [scores_of(torch.tensor([0.0, 0, 5])[:, None, None].expand(3, 4, 6))] * 3
        image = np.eye(6, dtype=np.float32)[None, :4].repeat(3, 0)
        writer.write(scored_event(image, scores, (1, 2, 3)))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 1
    exec(compile(blocks[0], "docs/cosmictagger_results.md", "exec"), {})
    assert capsys.readouterr().out == (
        "1 events of (4, 6) pixels; ids [1 2 3]\n4 of 4 pixels look like a neutrino\n"
    )


@pytest.mark.parametrize("mode", ["CPU", "IPU", "RDU"])
def test_the_table_of_files_is_what_runs_leave(run, plane_net, quick_pictures, mode, monkeypatch):
    monkeypatch.setenv("KINETO_LOG_LEVEL", "6")  # which a run with a profile sets
    part = PAGE.split("## Files of a run")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", part, re.M)
    listed = {name: of for names, of in rows for name in re.findall(r"`([^`]+)`", names)}
    left = []
    for more in (("run.iterations=2", "run.aux_iterations=1"), ("mode=inference",)):
        chosen = (*more, f"run.compute_mode={mode}", "run.saver=True", "run.profile=True")
        status, out = run(*chosen)
        assert status == 0
        left.append({path.name + "/" * path.is_dir() for path in out.iterdir()})
    foreign = {f"{other} mode" for other in ("IPU", "RDU") if other != mode}
    assert left[1] == {name for name, of in listed.items() if of not in foreign}
    assert "inference" not in {listed[name] for name in left[0]}
    assert "training" not in {listed[name] for name in left[1] - left[0]}
