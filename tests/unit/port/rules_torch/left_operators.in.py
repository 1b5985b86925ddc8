"""Operators that torch does not have."""

import poptorch
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.on_host = poptorch.CPU(torch.sort, "sort")  # ABP1909 manual

    def forward(self, x, y):
        with poptorch.autocast():  # ABP1909 manual
            x = poptorch.dynamic_slice(x, 0, torch.tensor(1), 2, 1)  # ABP1909 manual
        (x,) = poptorch.for_loop(3, lambda v: v * 2, [x])  # ABP1909 manual
        output = poptorch.ctc_beam_search_decoder(x, y)  # ABP1909 manual
        return poptorch.custom_op([x], "Cube", "domain", 1, [output])  # ABP1909 manual


model = poptorch.load("model.poptorch")  # ABP1909 manual
