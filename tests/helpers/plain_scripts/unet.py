import argparse
import logging
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split


class DoubleConv(nn.Module):
    """(convolution => [BN] => ReLU) * 2"""

    def __init__(self, in_channels, out_channels, mid_channels=None):
        super().__init__()
        if not mid_channels:
            mid_channels = out_channels
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, mid_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(mid_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(mid_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(in_channels, out_channels))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels, bilinear=True):
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(in_channels, out_channels, in_channels // 2)
        else:
            self.up = nn.ConvTranspose2d(in_channels, in_channels // 2, kernel_size=2, stride=2)
            self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        x1 = self.up(x1)
        diffY = x2.size()[2] - x1.size()[2]
        diffX = x2.size()[3] - x1.size()[3]
        x1 = F.pad(x1, [diffX // 2, diffX - diffX // 2, diffY // 2, diffY - diffY // 2])
        return self.conv(torch.cat([x2, x1], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, bilinear=False, base=8):
        super().__init__()
        self.n_channels = n_channels
        self.n_classes = n_classes
        self.bilinear = bilinear
        factor = 2 if bilinear else 1
        self.inc = DoubleConv(n_channels, base)
        self.down1 = Down(base, base * 2)
        self.down2 = Down(base * 2, base * 4 // factor)
        self.up1 = Up(base * 4, base * 2 // factor, bilinear)
        self.up2 = Up(base * 2, base, bilinear)
        self.outc = nn.Conv2d(base, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.up1(x3, x2)
        x = self.up2(x, x1)
        return self.outc(x)


class Blobs(Dataset):
    def __init__(self, count, size=(32, 36)):
        gen = torch.Generator().manual_seed(0)
        h, w = size
        yy, xx = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        self.images, self.masks = [], []
        for _ in range(count):
            cy, cx, r = (torch.rand(3, generator=gen) * 16 + 6).tolist()
            mask = ((yy - cy) ** 2 + (xx - cx) ** 2 < (r / 2) ** 2).long()
            image = mask.float() * 0.6 + torch.rand(3, h, w, generator=gen) * 0.5
            self.images.append(image)
            self.masks.append(mask)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        return {"image": self.images[idx].contiguous(), "mask": self.masks[idx].contiguous()}


def dice_coeff(input, target, epsilon=1e-6):
    inter = 2 * (input * target).sum(dim=(-1, -2))
    sets_sum = input.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
    return ((inter + epsilon) / (sets_sum + epsilon)).mean()


def dice_loss(input, target):
    return 1 - dice_coeff(input.flatten(0, 1), target.flatten(0, 1))


@torch.inference_mode()
def evaluate(net, dataloader, device, amp):
    net.eval()
    dice_score = 0
    with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
        for batch in dataloader:
            image = batch["image"].to(device=device, dtype=torch.float32)
            mask_true = batch["mask"].to(device=device, dtype=torch.long)
            mask_pred = net(image)
            mask_true = F.one_hot(mask_true, net.n_classes).permute(0, 3, 1, 2).float()
            mask_pred = F.one_hot(mask_pred.argmax(dim=1), net.n_classes).permute(0, 3, 1, 2)
            dice_score += dice_coeff(
                mask_pred.float()[:, 1:].flatten(0, 1), mask_true[:, 1:].flatten(0, 1)
            )
    net.train()
    return dice_score / max(len(dataloader), 1)


def train_batch(
    model, batch, criterion, optimizer, grad_scaler, device, amp, gradient_clipping=1.0
):
    images, true_masks = batch["image"], batch["mask"]
    assert images.shape[1] == model.n_channels, (
        f"Network has been defined with {model.n_channels} input channels, "
        f"but loaded images have {images.shape[1]} channels."
    )
    images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
    true_masks = true_masks.to(device=device, dtype=torch.long)

    with torch.autocast(device.type if device.type != "mps" else "cpu", enabled=amp):
        masks_pred = model(images)
        if model.n_classes == 1:
            loss = criterion(masks_pred.squeeze(1), true_masks.float())
            loss += dice_loss(torch.sigmoid(masks_pred), true_masks.float().unsqueeze(1))
        else:
            loss = criterion(masks_pred, true_masks)
            loss += dice_loss(
                F.softmax(masks_pred, dim=1).float(),
                F.one_hot(true_masks, model.n_classes).permute(0, 3, 1, 2).float(),
            )

    optimizer.zero_grad(set_to_none=True)
    grad_scaler.scale(loss).backward()
    grad_scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
    grad_scaler.step(optimizer)
    grad_scaler.update()
    return loss


def train_model(model, device, steps, batch_size, learning_rate, val_percent, amp):
    dataset = Blobs(80)
    n_val = int(len(dataset) * val_percent)
    n_train = len(dataset) - n_val
    train_set, val_set = random_split(
        dataset, [n_train, n_val], generator=torch.Generator().manual_seed(0)
    )
    loader_args = dict(batch_size=batch_size, num_workers=0, pin_memory=device.type == "cuda")
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **loader_args)

    optimizer = optim.RMSprop(
        model.parameters(), lr=learning_rate, weight_decay=1e-8, momentum=0.9, foreach=True
    )
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=5)
    grad_scaler = torch.amp.GradScaler(device.type, enabled=amp)
    criterion = nn.CrossEntropyLoss() if model.n_classes > 1 else nn.BCEWithLogitsLoss()
    global_step = 0

    while global_step < steps:
        model.train()
        for batch in train_loader:
            if global_step >= steps:
                break
            loss = train_batch(model, batch, criterion, optimizer, grad_scaler, device, amp)
            global_step += 1
            logging.info(f"step {global_step} loss (batch): {loss.item()}")
            if global_step % 10 == 0:
                val_score = evaluate(model, val_loader, device, amp)
                scheduler.step(val_score)
                logging.info(f"Validation Dice score: {val_score.item()}")


def get_args():
    parser = argparse.ArgumentParser(description="Train the UNet on images and target masks")
    parser.add_argument("--steps", "-s", type=int, default=20)
    parser.add_argument("--batch-size", "-b", dest="batch_size", type=int, default=8)
    parser.add_argument("--learning-rate", "-l", type=float, default=1e-4, dest="lr")
    parser.add_argument("--validation", "-v", dest="val", type=float, default=20.0)
    parser.add_argument("--amp", action="store_true", default=False)
    parser.add_argument("--bilinear", action="store_true", default=False)
    parser.add_argument("--classes", "-c", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    args = get_args()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(levelname)s: %(message)s")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = UNet(n_channels=3, n_classes=args.classes, bilinear=args.bilinear)
    model = model.to(memory_format=torch.channels_last)
    model.to(device=device)
    train_model(model, device, args.steps, args.batch_size, args.lr, args.val / 100, amp=args.amp)
