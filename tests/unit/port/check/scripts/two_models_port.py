"""A teacher, and a student that learns what the teacher answers."""

import argparse

import torch
from torch.nn import functional
from torch.utils.data import TensorDataset

import poptorch

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher

    def forward(self, rows, classes):
        loss = functional.cross_entropy(self.teacher(rows), classes)
        return loss


class ModelWithLoss2(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, teacher, student):
        super().__init__()
        self.teacher = teacher
        self.student = student

    def forward(self, rows):
        with torch.no_grad():
            wanted = functional.softmax(self.teacher(rows), dim=1)
        given = functional.log_softmax(self.student(rows), dim=1)
        loss = functional.kl_div(given, wanted, reduction="batchmean")
        return loss


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
    optimizer = poptorch.optim.Adam(teacher.parameters(), lr=0.01)
    training_model = poptorch.trainingModel(
        ModelWithLoss(teacher), options=opts, optimizer=optimizer
    )
    for rows, classes in loader:
        training_model(rows, classes)


def distill(teacher, student, loader, epochs):
    optimizer = poptorch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    training_model_2 = poptorch.trainingModel(
        ModelWithLoss2(teacher, student), options=opts, optimizer=optimizer
    )
    for _ in range(epochs):
        for rows, _ in loader:
            training_model_2(rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()
    data = TensorDataset(torch.randn(48, 8), torch.randint(3, (48,)))
    loader = poptorch.DataLoader(opts, data, batch_size=16)
    teacher, student = Teacher(), Student()
    train(teacher, loader)
    distill(teacher, student, loader, arguments.epochs)


if __name__ == "__main__":
    main()
