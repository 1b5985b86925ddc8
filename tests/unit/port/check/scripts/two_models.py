"""A teacher, and a student that learns what the teacher answers."""

import argparse

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Teacher(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 16)
        self.scores = torch.nn.Linear(16, 3)

    def forward(self, rows):
        return self.scores(torch.relu(self.body(rows)))


class Student(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 16)
        self.scores = torch.nn.Linear(16, 3)

    def forward(self, rows):
        return self.scores(torch.tanh(self.body(rows)))


def train(teacher, loader):
    optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
    for rows, classes in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(teacher(rows), classes)
        loss.backward()
        optimizer.step()


def distill(teacher, student, loader, epochs):
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for rows, _ in loader:
            optimizer.zero_grad()
            with torch.no_grad():
                wanted = functional.softmax(teacher(rows), dim=1)
            given = functional.log_softmax(student(rows), dim=1)
            loss = functional.kl_div(given, wanted, reduction="batchmean")
            loss.backward()
            optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    data = TensorDataset(torch.randn(48, 8), torch.randint(3, (48,)))
    loader = DataLoader(data, batch_size=16)
    teacher, student = Teacher(), Student()
    train(teacher, loader)
    distill(teacher, student, loader, arguments.epochs)


if __name__ == "__main__":
    main()
