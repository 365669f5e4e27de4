"""docs/examples/mlp_classifier.cpp in PyTorch."""
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch import nn

ARMS, HIDDEN, BATCH, STEPS = 3, 64, 240, 300


def draw(first, count):
    """Point i is the same on every rank: ranks cut a batch between them."""
    places, arms = [], []
    for i in range(first, first + count):
        random = torch.Generator().manual_seed(i)
        along = 0.1 + 0.9 * torch.rand((), generator=random)
        angle = 4 * along + 6.2832 * (i % ARMS) / ARMS + 0.1 * torch.randn((), generator=random)
        places.append(torch.stack([along * torch.cos(angle), along * torch.sin(angle)]))
        arms.append(i % ARMS)
    return torch.stack(places), torch.tensor(arms)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"in": nn.Linear(2, HIDDEN), "middle": nn.Linear(HIDDEN, HIDDEN), "out": nn.Linear(HIDDEN, ARMS)})
        for name, layer in self.layers.items():
            nn.init.normal_(layer.weight, std=1.0 if name == "in" else 0.2)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.layers["out"](torch.relu(self.layers["middle"](torch.relu(self.layers["in"](x)))))


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = Classifier()
    fully_shard(net.layers["middle"])
    fully_shard(net)
    decayed = [p for name, p in net.named_parameters() if name.endswith("weight")]
    others = [p for name, p in net.named_parameters() if not name.endswith("weight")]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0}], lr=0.01, betas=(0.9, 0.95), weight_decay=0.01)
    share = BATCH // ranks
    for step in range(STEPS):
        places, arms = draw(step * BATCH + share * rank, share)
        F.cross_entropy(net(places), arms).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    state = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        save_file(state, "mlp.safetensors")
    places, arms = draw(1_000_000, BATCH)
    with torch.no_grad():
        right = (net(places).argmax(1) == arms).float().mean()
    print(f"rank {rank} of {ranks}: {100 * right:.1f} % of unseen points")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
