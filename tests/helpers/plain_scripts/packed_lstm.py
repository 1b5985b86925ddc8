import argparse
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

PAD = 0
VOCAB = 40
TAGS = 5


def make_corpus(n, seed):
    """Sentences of 4 to 20 words; the tag of a word depends on the word before it."""
    rng = random.Random(seed)
    corpus = []
    for _ in range(n):
        words = [rng.randrange(1, VOCAB) for _ in range(rng.randint(4, 20))]
        tags = [(prev + word) % TAGS for prev, word in zip([0] + words, words)]
        corpus.append((torch.tensor(words), torch.tensor(tags)))
    return corpus


def collate(batch):
    batch.sort(key=lambda pair: len(pair[0]), reverse=True)
    words, tags = zip(*batch)
    lengths = torch.tensor([len(w) for w in words])
    words = pad_sequence(words, batch_first=True, padding_value=PAD)
    tags = pad_sequence(tags, batch_first=True, padding_value=-100)
    return words, tags, lengths


class Tagger(nn.Module):
    def __init__(self, embedding_dim=32, hidden_dim=32):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, embedding_dim, padding_idx=PAD)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.hidden2tag = nn.Linear(2 * hidden_dim, TAGS)

    def forward(self, words, lengths):
        embedded = self.dropout(self.embedding(words))
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True)
        output, (h, c) = self.lstm(packed)
        output, _ = pad_packed_sequence(output, batch_first=True)
        return self.hidden2tag(self.dropout(output))


def train_batch(model, criterion, optimizer, words, tags, lengths, clip):
    model.train()
    optimizer.zero_grad()
    scores = model(words, lengths)
    loss = criterion(scores.reshape(-1, TAGS), tags.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    with torch.no_grad():
        mask = tags != -100
        acc = (scores.argmax(-1)[mask] == tags[mask]).float().mean()
    return loss.item(), acc.item()


@torch.no_grad()
def evaluate(model, criterion, loader):
    model.eval()
    total, count = 0.0, 0
    for words, tags, lengths in loader:
        n = (tags != -100).sum().item()
        scores = model(words, lengths)
        total += criterion(scores.reshape(-1, TAGS), tags.reshape(-1)).item() * n
        count += n
    return total / count


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--clip", type=float, default=0.25)
    args = parser.parse_args()

    torch.manual_seed(7)
    train_loader = DataLoader(
        make_corpus(200, 0), batch_size=args.batch_size, shuffle=True, collate_fn=collate
    )
    valid_loader = DataLoader(make_corpus(50, 1), batch_size=args.batch_size, collate_fn=collate)
    model = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    step = 0
    while step < args.steps:
        for words, tags, lengths in train_loader:
            if step >= args.steps:
                break
            loss, acc = train_batch(model, criterion, optimizer, words, tags, lengths, args.clip)
            step += 1
            print(f"step {step:3d} | loss {loss} | acc {acc:.3f}")
        print(f"valid loss {evaluate(model, criterion, valid_loader)}")
