"""Networks that everybody knows, in plain torch.nn and in their full size: ResNet, ViT, U-Net. Random weights."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around which the input goes."""

    expansion = 1

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(channels, width, stride)

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class Bottleneck(nn.Module):
    """A 3×3 convolution between two 1×1 ones."""

    expansion = 4

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(channels, 4 * width, stride)

    def forward(self, x):
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def shortcut(channels, out, stride):
    if stride == 1 and channels == out:
        return None
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    def __init__(self, block, depths):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        channels = 64
        for i, depth in enumerate(depths):
            width, blocks = 64 << i, []
            for j in range(depth):
                blocks.append(block(channels, width, 2 if i and not j else 1))
                channels = width * block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(channels, 1000)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class EncoderBlock(nn.Module):
    """A layer of ViT: attention and two linear layers, each after a normalisation and with a way around."""

    def __init__(self, width, heads, hidden, rate):
        super().__init__()
        norm = partial(nn.LayerNorm, eps=1e-6)
        self.ln_1, self.self_attention = norm(width), nn.MultiheadAttention(width, heads, rate, batch_first=True)
        self.dropout, self.ln_2 = nn.Dropout(rate), norm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(rate), nn.Linear(hidden, width), nn.Dropout(rate)
        )

    def forward(self, x):
        y = self.ln_1(x)
        y, _ = self.self_attention(y, y, y, need_weights=False)
        x = self.dropout(y) + x
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    def __init__(self, steps, layers, width, heads, hidden, rate):
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.zeros(1, steps, width))
        self.dropout = nn.Dropout(rate)
        self.layers = nn.Sequential(*[EncoderBlock(width, heads, hidden, rate) for _ in range(layers)])
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x):
        return self.ln(self.layers(self.dropout(x + self.pos_embedding)))


class ViT(nn.Module):
    def __init__(self, size=224, patch=16, layers=12, width=768, heads=12, hidden=3072, rate=0.1):
        super().__init__()
        self.conv_proj = nn.Conv2d(3, width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = Encoder((size // patch) ** 2 + 1, layers, width, heads, hidden, rate)
        self.head = nn.Linear(width, 1000)

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        return self.head(self.encoder(x)[:, 0])


class DoubleConvolution(nn.Sequential):
    def __init__(self, channels, out):
        super().__init__(
            nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU()
        )


class UNet(nn.Module):
    """Levels down and up, each level's result joined to the result from below."""

    def __init__(self, channels=1, width=64, classes=2, depth=4):
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(DoubleConvolution(i, o) for i, o in zip([channels, *widths], widths, strict=False))
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(DoubleConvolution(2 * w, w) for w in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        levels = []
        for i, level in enumerate(self.down):
            x = level(self.pool(x) if i else x)
            levels.append(x)
        levels.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([levels.pop(), up(x)], 1))
        return self.last(x)


def resnet18():
    return ResNet(BasicBlock, (2, 2, 2, 2)).eval()


def resnet50():
    return ResNet(Bottleneck, (3, 4, 6, 3)).eval()


def vit_b_16():
    return ViT().eval()
