#!/usr/bin/env python3
"""A ResNet-50 for images of 32 x 32 pruned by Torch-Pruning: the peer of `bench/prune.py channels`.

  bench/torch_prune.py    one line of JSON: parameters and milliseconds of an AdamW step on 8 images, before and after
"""
import json
import time

import torch
import torch_pruning
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.layers(x) + self.shortcut(x))


def resnet50():
    layers, inputs = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for stage, (blocks, width) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512))):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def step_ms(model, images, labels):
    """The shortest of five steps after two."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times[2:])


def main():
    torch.manual_seed(0)
    model, images, labels = resnet50(), torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    result = {"parameters": {"before": sum(p.numel() for p in model.parameters())}, "step_ms": {"before": step_ms(model, images, labels)}}
    pruner = torch_pruning.pruner.MagnitudePruner(model, images, importance=torch_pruning.importance.MagnitudeImportance(p=2),
                                                  pruning_ratio=0.3, ignored_layers=[model[-1]])
    pruner.step()
    result["parameters"]["after"] = sum(p.numel() for p in model.parameters())
    result["step_ms"]["after"] = step_ms(model, images, labels)
    print(json.dumps({**result, "torch_pruning": torch_pruning.__version__, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
