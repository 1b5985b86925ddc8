"""What decides whether a step trains changes on the way; and a step is written on one line."""

import torch

model = torch.nn.Linear(4, 3)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
for phase in ["train", "val"]:
    optimizer.zero_grad()
    with torch.set_grad_enabled(phase != "val"):
        outputs = model(x)
        loss = criterion(outputs, y)
        if phase == "train":
            loss.backward()  # ABP399 blocked
            optimizer.step()
    print(phase, loss.item())

for _ in range(2):
    loss = criterion(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()  # ABP399 blocked
