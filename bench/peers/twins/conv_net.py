"""docs/examples/conv_net.cpp in PyTorch."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

KINDS, SIZE, BATCH, STEPS = 3, 12, 48, 60


def draw(first, count):
    """Image i is the same on every rank: ranks cut a batch between them."""
    pixels, kinds = [], []
    for i in range(first, first + count):
        random = torch.Generator().manual_seed(i)
        x, y = (4 + torch.randint(4, (2,), generator=random)).tolist()
        dx = (torch.arange(SIZE) - x).abs().expand(SIZE, SIZE)
        dy = (torch.arange(SIZE) - y).abs()[:, None].expand(SIZE, SIZE)
        is_set = [(dx < 3) & (dy < 3), (dx == dy) & (dx < 4), dx + dy == 3][i % KINDS]
        pixels.append(is_set + 0.3 * torch.randn(SIZE, SIZE, generator=random))
        kinds.append(i % KINDS)
    return torch.stack(pixels)[:, None], torch.tensor(kinds)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 16, 3)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(16 * 2 * 2, KINDS)

    def forward(self, x):
        halved = F.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        quartered = F.max_pool2d(torch.relu(self.second(halved)), 2)
        return self.out(self.drop(quartered.flatten(1)))


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = ConvNet()
    fully_shard(net)
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0}], lr=0.01, betas=(0.9, 0.95), weight_decay=0.01)
    share = BATCH // ranks
    for step in range(STEPS):
        pixels, kinds = draw(step * BATCH + share * rank, share)
        F.cross_entropy(net(pixels), kinds).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for buffer in (net.norm.running_mean, net.norm.running_var):
        dist.all_reduce(buffer.div_(ranks))  # each rank's statistics are of its own samples
    net.eval()
    pixels, kinds = draw(1_000_000 + share * rank, share)
    with torch.no_grad():
        right = (net(pixels).argmax(1) == kinds).float().mean()
    dist.all_reduce(right)
    print(f"rank {rank}: {100 * right / ranks:.1f} % of unseen images")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
