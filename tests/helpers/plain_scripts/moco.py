"""Momentum contrast: a query encoder, a momentum key encoder and a queue of negatives."""

import argparse
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class TwoCrops(Dataset):
    """Two noisy views of each synthetic image."""

    def __init__(self, count, size=12):
        gen = torch.Generator().manual_seed(3)
        self.images = torch.randn(count, 3, size, size, generator=gen)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        q, k = (image + 0.3 * torch.randn_like(image) for _ in range(2))
        return (q, k.flip(-1)), index


def encoder(dim):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, dim),
    )


class MoCo(nn.Module):
    def __init__(self, base_encoder, dim=16, K=128, m=0.99, T=0.07):
        super().__init__()
        self.K = K
        self.m = m
        self.T = T
        self.encoder_q = base_encoder(dim)
        self.encoder_k = base_encoder(dim)
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data.copy_(param_q.data)  # initialize
            param_k.requires_grad = False  # not update by gradient
        self.register_buffer("queue", torch.randn(dim, K))
        self.queue = nn.functional.normalize(self.queue, dim=0)
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        batch_size = keys.shape[0]
        ptr = int(self.queue_ptr)
        assert self.K % batch_size == 0  # for simplicity
        # replace the keys at ptr (dequeue and enqueue)
        self.queue[:, ptr : ptr + batch_size] = keys.T
        ptr = (ptr + batch_size) % self.K  # move pointer
        self.queue_ptr[0] = ptr

    def forward(self, im_q, im_k):
        q = self.encoder_q(im_q)
        q = nn.functional.normalize(q, dim=1)
        with torch.no_grad():  # no gradient to keys
            self._momentum_update_key_encoder()
            idx_shuffle = torch.randperm(im_k.shape[0])  # shuffle for making use of BN
            idx_unshuffle = torch.argsort(idx_shuffle)
            k = self.encoder_k(im_k[idx_shuffle])
            k = nn.functional.normalize(k, dim=1)
            k = k[idx_unshuffle]

        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1)
        logits /= self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.val = self.sum = self.avg = 0.0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        _, pred = output.topk(maxk, 1, True, True)
        correct = pred.t().eq(target.view(1, -1))
        return [correct[:k].reshape(-1).float().sum() * (100.0 / len(target)) for k in topk]


def adjust_learning_rate(optimizer, step, args):
    lr = args.lr * 0.5 * (1.0 + math.cos(math.pi * step / args.steps))
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr


def train_step(images, model, criterion, optimizer, losses, top1):
    output, target = model(im_q=images[0], im_k=images[1])
    loss = criterion(output, target)

    # acc1/acc5 are (K+1)-way contrast classifier accuracy
    acc1, acc5 = accuracy(output, target, topk=(1, 5))
    losses.update(loss.item(), images[0].size(0))
    top1.update(acc1.item(), images[0].size(0))

    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", default=20, type=int)
    parser.add_argument("-b", "--batch-size", default=32, type=int)
    parser.add_argument("--lr", default=0.03, type=float)
    parser.add_argument("--momentum", default=0.9, type=float)
    parser.add_argument("--wd", default=1e-4, type=float)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = MoCo(encoder)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(
        model.parameters(), args.lr, momentum=args.momentum, weight_decay=args.wd
    )
    loader = DataLoader(TwoCrops(256), batch_size=args.batch_size, shuffle=True, drop_last=True)
    losses, top1 = AverageMeter("Loss"), AverageMeter("Acc@1")
    model.train()
    step = 0
    while step < args.steps:
        for images, _ in loader:
            if step >= args.steps:
                break
            adjust_learning_rate(optimizer, step, args)
            train_step(images, model, criterion, optimizer, losses, top1)
            step += 1
            print(f"[{step}/{args.steps}] Loss {losses.val} ({losses.avg}) Acc@1 {top1.val:.2f}")


if __name__ == "__main__":
    main()
