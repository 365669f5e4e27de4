"""docs/examples/fine_tune.cpp in PyTorch."""
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard

ARMS, HIDDEN, BATCH, STEPS = 3, 64, 240, 150


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"in": nn.Linear(2, HIDDEN), "middle": nn.Linear(HIDDEN, HIDDEN), "head": nn.Linear(HIDDEN, 1)})

    def forward(self, x):
        return self.layers["head"](torch.relu(self.layers["middle"](torch.relu(self.layers["in"](x)))))


def main():
    if len(sys.argv) < 2:
        sys.exit("no weights are named: fine_tune FILE.safetensors")
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Regressor()
    fully_shard(net)
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)
    found = {name: value for name, value in load_file(sys.argv[1]).items() if not name.startswith("layers.head.")}
    left = set_model_state_dict(net, found, options=whole).unexpected_keys
    if rank == 0:
        for name in left:
            print(f"left in the file: {name}")
    net.layers["in"].requires_grad_(False)
    groups = []
    for layer, scale in (("middle", 0.1), ("head", 1.0)):
        groups.append({"params": [net.layers[layer].weight], "lr": 0.01 * scale, "weight_decay": 0.1})
        groups.append({"params": [net.layers[layer].bias], "lr": 0.01 * scale, "weight_decay": 0})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    share = BATCH // ranks
    for step in range(1, STEPS + 1):
        random = torch.Generator().manual_seed(step * ranks + rank)
        distances = 0.1 + 0.9 * torch.rand(share, 1, generator=random)
        angle = 4 * distances + 6.2832 * (torch.arange(share) % ARMS)[:, None] / ARMS
        places = torch.cat([distances * angle.cos(), distances * angle.sin()], 1)
        loss = F.mse_loss(net(places), distances)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    print(f"rank {rank}: error {loss.sqrt():.3f}")
    state = get_model_state_dict(net, options=whole)
    if rank == 0:
        save_file(state, "tuned.safetensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
