"""A graph as a sparse matrix, and an embedding with sparse gradients."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x, edges):
        return torch.spmm(edges, x @ self.weight)  # ABP602 blocked


model = Layer()
table = nn.Embedding(10, 4, sparse=True)  # ABP602 blocked
dense = nn.Embedding(10, 4, sparse=False)
edges = torch.eye(8).to_sparse()  # ABP602 blocked
other = torch.sparse_coo_tensor([[0], [1]], [1.0], (8, 8))  # ABP602 blocked
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
slow = torch.optim.SparseAdam(table.parameters(), lr=0.1)  # ABP602 blocked
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4), edges).square().mean()
    loss.backward()
    optimizer.step()
