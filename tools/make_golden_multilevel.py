#!/usr/bin/env python3
"""Writes tests/golden/multilevel.json: the first hypergradients of Betty on a small problem.

Needs PyTorch and Betty (pip install betty-ml, 0.1.1). Below: a network of one hidden layer on six weighted points,
two steps of gradient descent with momentum. Above: the weights of the points, by the loss on four other points. Only
the first step above is compared: Betty's finite differences leave the network moved after it, and its conjugate
gradients go wrong from the second iteration.

    tools/make_golden_multilevel.py tests/golden/multilevel.json
"""
import json
import sys

import torch
from betty.configs import Config, EngineConfig
from betty.engine import Engine
from betty.problems import ImplicitProblem

torch.set_default_dtype(torch.float64)


class Weights(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.value = torch.nn.Parameter(start.clone())


class Net(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.hidden = torch.nn.Linear(3, 4)
        self.out = torch.nn.Linear(4, 1)
        self.load_state_dict(start)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x))).squeeze(1)


def numbers(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


train_x, train_y = numbers(6, 3, seed=1), numbers(6, seed=2)
valid_x, valid_y = numbers(4, 3, seed=3), numbers(4, seed=4)
start = {"hidden.weight": numbers(4, 3, seed=5), "hidden.bias": numbers(4, seed=6),
         "out.weight": numbers(1, 4, seed=7), "out.bias": numbers(1, seed=8)}
weights = numbers(6, seed=9)


class Lower(ImplicitProblem):
    def training_step(self, batch):
        x, y = batch
        return (torch.sigmoid(self.upper.module.value) * (self.module(x) - y) ** 2).mean()


class Upper(ImplicitProblem):
    def training_step(self, batch):
        x, y = batch
        return ((self.lower.module(x) - y) ** 2).mean()


def run(options):
    lower_net, upper_net = Net(start), Weights(weights)
    lower = Lower(name="lower", module=lower_net, device="cpu", config=Config(unroll_steps=2, **options),
                  optimizer=torch.optim.SGD(lower_net.parameters(), lr=0.1, momentum=0.9),
                  train_data_loader=[(train_x, train_y)])
    upper = Upper(name="upper", module=upper_net, device="cpu", config=Config(),
                  optimizer=torch.optim.SGD(upper_net.parameters(), lr=1.0),
                  train_data_loader=[(valid_x, valid_y)])
    engine = Engine(config=EngineConfig(train_iters=2, valid_step=100), problems=[lower, upper],
                    dependencies={"u2l": {upper: [lower]}, "l2u": {lower: [upper]}})
    engine.run()
    return (weights - upper_net.value.detach()).tolist()


cases = [{"type": "darts"}, {"type": "darts", "darts_alpha": 0.1},
         {"type": "neumann", "neumann_iterations": 1, "neumann_alpha": 1.0},
         {"type": "neumann", "neumann_iterations": 5, "neumann_alpha": 0.1}, {"type": "cg", "cg_iterations": 1}]
golden = {"train_x": train_x.tolist(), "train_y": train_y.tolist(), "valid_x": valid_x.tolist(),
          "valid_y": valid_y.tolist(), "weights": weights.tolist(),
          "net": {name: value.flatten().tolist() for name, value in start.items()},
          "cases": [{**case, "hypergradient": run(case)} for case in cases]}
with open(sys.argv[1], "w") as file:
    json.dump(golden, file, indent=1)
    file.write("\n")
