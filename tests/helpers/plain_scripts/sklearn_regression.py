"""An estimator with scikit-learn's methods around a small network."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "logistic": nn.Sigmoid}


class TorchRegressor:
    def __init__(
        self,
        hidden_layer_sizes=(64, 32),
        activation="relu",
        alpha=1e-4,
        batch_size=64,
        learning_rate_init=1e-2,
        max_iter=20,
        early_stopping=True,
        n_iter_no_change=5,
        random_state=None,
        verbose=True,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.alpha = alpha
        self.batch_size = batch_size
        self.learning_rate_init = learning_rate_init
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.verbose = verbose

    def get_params(self, deep=True):
        return {k: v for k, v in vars(self).items() if not k.endswith("_")}

    def set_params(self, **params):
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def _build(self, n_features):
        if self.random_state is not None:
            torch.manual_seed(self.random_state)
        sizes = [n_features, *self.hidden_layer_sizes]
        layers = []
        for n_in, n_out in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(n_in, n_out), ACTIVATIONS[self.activation]()]
        layers.append(nn.Linear(sizes[-1], 1))
        self.model_ = nn.Sequential(*layers).double()
        self.optimizer_ = torch.optim.Adam(self.model_.parameters(), lr=self.learning_rate_init)
        self.loss_curve_ = []

    def _train_on_batch(self, X, y):
        self.optimizer_.zero_grad()
        pred = self.model_(X).squeeze(-1)
        loss = 0.5 * ((pred - y) ** 2).mean()
        penalty = sum((p**2).sum() for p in self.model_.parameters() if p.dim() > 1)
        loss = loss + 0.5 * self.alpha * penalty / len(X)
        loss.backward()
        self.optimizer_.step()
        return loss.item()

    def fit(self, X, y):
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
        self.mean_, self.scale_ = X.mean(axis=0), X.std(axis=0)
        self.y_mean_, self.y_scale_ = y.mean(), y.std()
        self._build(X.shape[1])
        X = torch.from_numpy((X - self.mean_) / self.scale_)
        y = torch.from_numpy((y - self.y_mean_) / self.y_scale_)
        n_val = len(X) // 10 if self.early_stopping else 0
        X_val, y_val = X[:n_val], y[:n_val]
        train = TensorDataset(X[n_val:], y[n_val:])
        loader = DataLoader(train, batch_size=self.batch_size, shuffle=True)

        best, stale, self.n_iter_ = float("inf"), 0, 0
        while self.n_iter_ < self.max_iter:
            self.model_.train()
            for xb, yb in loader:
                if self.n_iter_ >= self.max_iter:
                    break
                loss = self._train_on_batch(xb, yb)
                self.loss_curve_.append(loss)
                self.n_iter_ += 1
                if self.verbose:
                    print(f"Iteration {self.n_iter_}, loss = {loss}")
            if self.early_stopping:
                self.model_.eval()
                with torch.no_grad():
                    val = ((self.model_(X_val).squeeze(-1) - y_val) ** 2).mean().item()
                stale = 0 if val < best else stale + 1
                best = min(best, val)
                if stale >= self.n_iter_no_change:
                    print("Validation score did not improve. Stopping.")
                    break
        return self

    def predict(self, X):
        self.model_.eval()
        X = torch.from_numpy((np.asarray(X, dtype=np.float64) - self.mean_) / self.scale_)
        with torch.no_grad():
            pred = self.model_(X).squeeze(-1).numpy()
        return pred * self.y_scale_ + self.y_mean_

    def score(self, X, y):
        u = ((y - self.predict(X)) ** 2).sum()
        v = ((y - y.mean()) ** 2).sum()
        return 1 - u / v


def make_friedman(n_samples, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n_samples, 8))
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3]
    return X, y + 5 * X[:, 4] + rng.normal(size=n_samples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    X_train, y_train = make_friedman(450, 0)
    X_test, y_test = make_friedman(200, 1)
    reg = TorchRegressor(max_iter=args.steps, random_state=0)
    reg.fit(X_train, y_train)
    print(f"R^2 train {reg.score(X_train, y_train)} test {reg.score(X_test, y_test)}")
