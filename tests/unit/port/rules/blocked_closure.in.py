"""An optimizer that evaluates its closure as often as it needs."""

import torch

x, y = torch.randn(32, 3), torch.randn(32, 1)
model = torch.nn.Linear(3, 1)
criterion = torch.nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5)

for step in range(5):

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()  # ABP399 blocked
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        print(criterion(model(x), y).item())
