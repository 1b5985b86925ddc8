"""k-fold cross-validation: a new model and optimizer in each fold."""
import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, inputs, targets):
        outputs = self.network(inputs)
        loss = loss_function(outputs, targets)
        return poptorch.identity_loss(loss, reduction="none")


def reset_weights(m):
    if hasattr(m, "reset_parameters"):
        m.reset_parameters()


def make_model():
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Linear(10, 3))


torch.manual_seed(0)
x = torch.randn(90, 6)
y = (x[:, :3].argmax(1))
dataset = TensorDataset(x, y)
k = 3
folds = torch.randperm(len(dataset)).chunk(k)
results = {}
loss_function = nn.CrossEntropyLoss()
for fold in range(k):
    val_ids = folds[fold].tolist()
    train_ids = [i for f in range(k) if f != fold for i in folds[f].tolist()]
    train_loader = poptorch.DataLoader(opts, dataset, batch_size=10, sampler=SubsetRandomSampler(train_ids))
    val_loader = DataLoader(Subset(dataset, val_ids), batch_size=10)
    network = make_model()
    inference_model = poptorch.inferenceModel(network, options=opts)
    network.apply(reset_weights)
    optimizer = poptorch.optim.Adam(network.parameters(), lr=1e-2)
    training_model = poptorch.trainingModel(
        ModelWithLoss(network), options=opts, optimizer=optimizer
    )
    for epoch in range(2):
        network.train()
        current_loss = 0.0
        for i, data in enumerate(train_loader, 0):
            inputs, targets = data
            loss = training_model(inputs, targets)
            current_loss += loss.item()
            print(f"fold {fold} {loss.item():.7f}")
    correct, total = 0, 0
    network.eval()
    with torch.no_grad():
        for data in val_loader:
            inputs, targets = data
            outputs = (inference_model if len(inputs) == val_loader.batch_size else network)(inputs)
            _, predicted = torch.max(outputs.data, 1)
            total += targets.size(0)
            correct += (predicted == targets).sum().item()
    results[fold] = 100.0 * correct / total
    print(f"fold {fold}: {results[fold]}")
print("average", sum(results.values()) / len(results))
