"""docs/examples/own_optimizer.cpp in PyTorch."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

HIDDEN, ROWS, STEPS = 32, 128, 200


class Adagrad(torch.optim.Optimizer):
    """Adagrad (Duchi, Hazan, Singer 2011): an element's steps shrink with the squares of its gradients so far."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["sum"] = torch.zeros_like(p)
                state["sum"].addcmul_(p.grad, p.grad)
                p.addcdiv_(p.grad, state["sum"].sqrt() + 1e-6, value=-group["lr"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.out = nn.Linear(2, HIDDEN), nn.Linear(HIDDEN, 2)
        for layer, deviation in ((self.first, 1.0), (self.out, 0.1)):
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.out(torch.relu(self.first(x)))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    fully_shard(net)
    optimizer = Adagrad(net.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(rank)
    for step in range(1, STEPS + 1):
        places = 2 * torch.rand(ROWS, 2, generator=random) - 1
        radius = places.norm(dim=1)
        kinds = ((radius > 0.4) & (radius < 0.8)).long()
        loss = F.cross_entropy(net(places), kinds)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if norm.full_tensor().isfinite():
            optimizer.step()
        optimizer.zero_grad()
        if step % 199 == 1:
            print(f"rank {rank}, step {step}: loss {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
