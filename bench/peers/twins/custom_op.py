"""docs/examples/custom_op.cpp in PyTorch."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

HIDDEN, ROWS, STEPS = 64, 96, 400


class Snake(torch.autograd.Function):
    """x + sin(x)^2 (Ziyin, Hartwig, Ueda 2020), and its derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x + torch.sin(x) ** 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (1 + torch.sin(2 * x))


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.out = nn.Linear(1, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 1)
        for layer, deviation in ((self.first, 2.0), (self.middle, 0.1), (self.out, 0.1)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.out(Snake.apply(self.middle(Snake.apply(self.first(x)))))


def points(rank, ranks, shift):
    """x in [-1, 1), as many on every rank, and the wave there."""
    x = (torch.arange(rank, ROWS, ranks).float()[:, None] + shift) * 2 / ROWS - 1
    return x, torch.sin(9 * x)


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Wave()
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0)
    x, y = points(rank, ranks, 0)
    for _ in range(STEPS):
        F.mse_loss(net(x), y).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    between, expected = points(rank, ranks, 0.5)
    with torch.no_grad():
        error = F.mse_loss(net(between), expected)
    dist.all_reduce(error)
    print(f"rank {rank}: error {(error / ranks).sqrt():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
