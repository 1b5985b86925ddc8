"""Environments of poprun, set by monkeypatch; models are interpreted."""

import os

import pytest


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """Every test starts without poprun, MPI and torchrun and on target reference."""
    monkeypatch.setenv("ABELE_TARGET", "reference")
    for name in list(os.environ):
        if name.startswith(("POPDIST_", "OMPI_COMM_WORLD_")):
            monkeypatch.delenv(name)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def poprun(monkeypatch):
    """Sets what poprun sets for one instance; a count of None leaves its variable out."""

    def start(index=0, instances=1, local=2, ipus=1, **changed):
        results = {
            "POPDIST_NUM_TOTAL_REPLICAS": instances * local,
            "POPDIST_NUM_IPUS_PER_REPLICA": ipus,
            "POPDIST_NUM_LOCAL_REPLICAS": local,
            "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": 1,
            "POPDIST_REPLICA_INDEX_OFFSET": index * local,
            "POPDIST_LOCAL_INSTANCE_INDEX": index,
            "OMPI_COMM_WORLD_SIZE": instances,
            "OMPI_COMM_WORLD_RANK": index,
        } | changed
        for name, value in results.items():
            if value is not None:
                monkeypatch.setenv(name, str(value))

    return start
