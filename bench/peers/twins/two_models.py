"""docs/examples/two_models.cpp in PyTorch."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

NOISE, HIDDEN, ROWS, STEPS = 4, 32, 64, 1500


class Net(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.first, self.out = nn.Linear(inner, HIDDEN), nn.Linear(HIDDEN, outer)
        for layer, deviation in ((self.first, 0.5), (self.out, 0.2)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.out(torch.relu(self.first(x)))


def surprise(logits):
    return F.softplus(-logits).mean()


def step_of(net, optimizer):
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    generator, critic = Net(NOISE, 2), Net(2, 1)
    for net in (generator, critic):
        fully_shard(net)
    optimizers = [torch.optim.AdamW(net.parameters(), lr=5e-3, betas=(0.5, 0.95), weight_decay=0.1) for net in (generator, critic)]
    random = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        noise = torch.randn(ROWS, NOISE, generator=random)
        angle = 3 * torch.randn(ROWS, generator=random)
        real = torch.stack([angle.cos(), angle.sin()], 1)
        made = generator(noise)
        (surprise(critic(real)) + surprise(-critic(made.detach()))).backward()
        step_of(critic, optimizers[1])
        surprise(critic(made)).backward()
        step_of(generator, optimizers[0])
        optimizers[1].zero_grad()
        if step % (STEPS - 1) == 1:
            error = (made.detach().norm(dim=1) - 1).abs().mean()
            print(f"rank {rank}, step {step}: {error:.3f} off the circle")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
