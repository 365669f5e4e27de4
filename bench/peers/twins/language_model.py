"""docs/examples/language_model.cpp in PyTorch: language_model.py TRAIN... VALIDATION, each a file. A token is a byte."""
import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

VOCAB, WIDTH, TIME, BATCH, STEPS = 256, 64, 32, 16, 100


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(TIME, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.tokens.weight).flatten(0, 1), targets.flatten())


def sequences(paths):
    data = torch.tensor(list(b"".join(pathlib.Path(path).read_bytes() for path in paths)))
    return data[: (len(data) - 1) // TIME * TIME + 1].unfold(0, TIME + 1, TIME)


def main():
    if len(sys.argv) < 3:
        sys.exit("no text: call it with files to train on and one to validate")
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data, unseen = sequences(sys.argv[1:-1]), sequences(sys.argv[-1:])
    torch.manual_seed(1)
    net = Gpt()
    for block in net.blocks:
        fully_shard(block)
    fully_shard(net)
    decayed = [p for p in net.parameters() if p.dim() > 1]
    others = [p for p in net.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0}], lr=5e-3, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS - 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[10])
    order = torch.cat([torch.randperm(len(data), generator=torch.Generator().manual_seed(i)) for i in range(STEPS * BATCH // len(data) + 1)])
    for step in range(STEPS):
        batch = data[order[step * BATCH + rank : (step + 1) * BATCH : ranks]]
        net(batch[:, :-1], batch[:, 1:]).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    losses = []
    with torch.no_grad():
        for i in range(len(unseen) // BATCH):
            batch = unseen[i * BATCH + rank : (i + 1) * BATCH : ranks]
            losses.append(net(batch[:, :-1], batch[:, 1:]))
    loss = torch.stack(losses).mean()
    dist.all_reduce(loss)
    if rank == 0:
        print(f"loss of unseen text: {loss / ranks:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
