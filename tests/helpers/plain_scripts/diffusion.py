import argparse
import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

T = 100  # diffusion steps


def cosine_beta_schedule(timesteps, s=0.008):
    x = torch.linspace(0, timesteps, timesteps + 1)
    alphas_cumprod = torch.cos(((x / timesteps) + s) / (1 + s) * math.pi * 0.5) ** 2
    alphas_cumprod = alphas_cumprod / alphas_cumprod[0]
    betas = 1 - (alphas_cumprod[1:] / alphas_cumprod[:-1])
    return torch.clip(betas, 0.0001, 0.9999)


betas = cosine_beta_schedule(T)
alphas = 1.0 - betas
alphas_cumprod = torch.cumprod(alphas, dim=0)
sqrt_alphas_cumprod = torch.sqrt(alphas_cumprod)
sqrt_one_minus_alphas_cumprod = torch.sqrt(1.0 - alphas_cumprod)


def extract(a, t, x_shape):
    out = a.gather(-1, t)
    return out.reshape(t.shape[0], *((1,) * (len(x_shape) - 1)))


class TimeEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.SiLU(), nn.Linear(dim * 4, dim))

    def forward(self, t):
        half = self.dim // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(half, device=t.device) / (half - 1))
        angles = t[:, None].float() * freqs[None]
        return self.mlp(torch.cat((angles.sin(), angles.cos()), dim=-1))


class ResBlock(nn.Module):
    def __init__(self, cin, cout, tdim):
        super().__init__()
        self.norm1 = nn.GroupNorm(4, cin)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.time = nn.Linear(tdim, cout)
        self.norm2 = nn.GroupNorm(4, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, temb):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(temb))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class Denoiser(nn.Module):
    def __init__(self, ch=16, tdim=32):
        super().__init__()
        self.time = TimeEmbedding(tdim)
        self.stem = nn.Conv2d(1, ch, 3, padding=1)
        self.down1 = ResBlock(ch, ch, tdim)
        self.pool = nn.Conv2d(ch, ch * 2, 4, stride=2, padding=1)
        self.mid = ResBlock(ch * 2, ch * 2, tdim)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.up1 = ResBlock(ch * 3, ch, tdim)
        self.out = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x, t):
        temb = self.time(t)
        h1 = self.down1(self.stem(x), temb)
        h2 = self.mid(self.pool(h1), temb)
        h = self.up1(torch.cat([self.up(h2), h1], dim=1), temb)
        return self.out(h)


class EMA:
    def __init__(self, model, decay, warmup=5):
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.warmup = warmup
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = self.decay * (1 - math.exp(-self.updates / self.warmup))
        for ema_p, p in zip(self.module.parameters(), model.parameters()):
            ema_p.mul_(decay).add_(p, alpha=1 - decay)
        for ema_b, b in zip(self.module.buffers(), model.buffers()):
            ema_b.copy_(b)


def p_losses(denoise_model, x_start, t, noise=None, loss_type="huber"):
    if noise is None:
        noise = torch.randn_like(x_start)
    x_noisy = (
        extract(sqrt_alphas_cumprod, t, x_start.shape) * x_start
        + extract(sqrt_one_minus_alphas_cumprod, t, x_start.shape) * noise
    )
    predicted_noise = denoise_model(x_noisy, t)
    if loss_type == "l1":
        return F.l1_loss(noise, predicted_noise)
    elif loss_type == "l2":
        return F.mse_loss(noise, predicted_noise)
    elif loss_type == "huber":
        return F.smooth_l1_loss(noise, predicted_noise)
    else:
        raise NotImplementedError()


@torch.no_grad()
def sample(model, shape, steps):
    x = torch.randn(shape)
    for i in reversed(range(T - steps, T)):
        t = torch.full((shape[0],), i, dtype=torch.long)
        eps = model(x, t)
        mean = (x - betas[i] / sqrt_one_minus_alphas_cumprod[i] * eps) / alphas[i].sqrt()
        x = mean + betas[i].sqrt() * torch.randn_like(x) if i > 0 else mean
    return x


def discs(count, size=16):
    gen = torch.Generator().manual_seed(0)
    centre = torch.rand(count, 2, 1, 1, generator=gen) * 8 + 4
    grid = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij"))
    inside = ((grid[None] - centre) ** 2).sum(1, keepdim=True) < 12
    return inside.float() * 2 - 1


def train_step(model, ema, optimizer, x):
    optimizer.zero_grad()
    t = torch.randint(0, T, (x.shape[0],), device=x.device).long()
    loss = p_losses(model, x, t, loss_type="huber")
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    ema.update(model)
    return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ema-decay", type=float, default=0.995)
    args = parser.parse_args()

    torch.manual_seed(0)
    loader = DataLoader(discs(160), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Denoiser()
    ema = EMA(model, args.ema_decay)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    step = 0
    while step < args.steps:
        for batch in loader:
            if step == args.steps:
                break
            loss = train_step(model, ema, optimizer, batch)
            print(f"step {step}: loss {loss.item()}")
            step += 1

    images = sample(ema.module, (2, 1, 16, 16), steps=5)
    print(f"samples: mean {images.mean().item()} std {images.std().item()}")


if __name__ == "__main__":
    main()
