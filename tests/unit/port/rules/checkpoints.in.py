"""A whole model is saved and read again."""

import torch

model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), torch.ones(8, 3))
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save(model, "model.pt")
again = torch.load("model.pt", weights_only=False)
print(type(again).__name__, again.weight.double().sum().item(), again(torch.ones(2, 4)).tolist())
