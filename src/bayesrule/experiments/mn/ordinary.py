"""An ordinary network of the same shape and start, to say what a posterior and its sparsity cost in accuracy."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesrule.data import LabelledSet
from bayesrule.experiments.mn.recipe import Recipe
from bayesrule.train import TensorBatches

LEARNING_RATE = 1e-3


def train_ordinary(recipe: Recipe, data: LabelledSet) -> nn.Module:
    """Trained by cross-entropy alone, with the recipe's epochs and batches; the learning rate is Adam's usual one."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        net = recipe.start(torch.Generator().manual_seed(recipe.seed)).to(data.train_x.device)
        batch_size = min(recipe.batch_size, len(data.train_y) // 2)
        batches = TensorBatches(data.train_x, data.train_y, batch_size=batch_size, drop_last=True)
        optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE)
        schedule = CosineAnnealingLR(optimizer, recipe.epochs * len(batches))
        for _ in range(recipe.epochs):
            for x, y in batches:
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
                schedule.step()
    return net.eval()
