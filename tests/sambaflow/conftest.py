"""Programs of these tests are interpreted: no compiler, bitwise equal to plain PyTorch."""

import pytest
import torch

from sambaflow import samba


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch, tmp_path):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.chdir(tmp_path)
    samba.session.graph = None
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    samba.session.graph = None


@pytest.fixture
def load(tmp_path):
    """Compiles a model, loads the file and returns the outputs without data."""

    def run(model, inputs, optimizer=None, session=samba.session, **settings):
        where = {"output_folder": str(tmp_path / "out"), "pef_name": "model"}
        pef = session.compile(model, inputs, optimizer, config_dict=where, **settings)
        settings.pop("inference", None)
        return session.trace_graph(model, inputs, optimizer, pef=pef, **settings)

    return run
