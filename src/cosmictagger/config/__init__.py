"""The configuration of a run, with the keys of CosmicTagger."""

from cosmictagger.config.network import (
    NETWORKS,
    Connection,
    ConvMode,
    DownSampling,
    GrowthRate,
    Network,
    Norm,
    UpSampling,
)

__all__ = [
    "NETWORKS",
    "Connection",
    "ConvMode",
    "DownSampling",
    "GrowthRate",
    "Network",
    "Norm",
    "UpSampling",
]
