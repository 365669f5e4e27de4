"""docs/examples/vision_transformer.cpp in PyTorch."""
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

KINDS, SIZE, PATCH, PATCHES, WIDTH, BATCH, STEPS = 4, 16, 4, 16, 32, 48, 60


def draw(first, count):
    """Image i is the same on every rank: ranks cut a batch between them."""
    pixels, kinds = [], []
    for i in range(first, first + count):
        random = torch.Generator().manual_seed(i)
        angle, begin = 0.7854 * (i % KINDS), 9 * 0.5 * torch.randn((), generator=random)
        x, y = torch.arange(SIZE).float(), torch.arange(SIZE).float()[:, None]
        stripes = torch.sin(x * math.cos(angle) + y * math.sin(angle) + begin)
        pixels.append(stripes + 0.5 * torch.randn(SIZE, SIZE, generator=random))
        kinds.append(i % KINDS)
    return torch.stack(pixels)[:, None], torch.tensor(kinds)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class VisionTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.summary = nn.Parameter(0.02 * torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + PATCHES, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, images):
        seen = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.summary.expand(len(images), 1, WIDTH), seen], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = VisionTransformer()
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    decayed = [p for p in net.parameters() if p.dim() == 2 or p.dim() == 4]
    others = [p for p in net.parameters() if p.dim() == 1 or p.dim() == 3]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0}], lr=0.003, betas=(0.9, 0.95), weight_decay=0.1)
    share = BATCH // ranks
    for step in range(STEPS):
        pixels, kinds = draw(step * BATCH + share * rank, share)
        F.cross_entropy(net(pixels), kinds).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    pixels, kinds = draw(1_000_000 + share * rank, share)
    with torch.no_grad():
        right = (net(pixels).argmax(1) == kinds).float().mean()
    dist.all_reduce(right)
    print(f"rank {rank}: {100 * right / ranks:.1f} % of unseen images")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
