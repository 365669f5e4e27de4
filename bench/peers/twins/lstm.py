"""docs/examples/lstm.cpp in PyTorch."""
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

LETTERS, WIDTH, TIME, ROWS, STEPS = 128, 64, 24, 8, 80


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gates = nn.Linear(2 * WIDTH, 4 * WIDTH)

    def forward(self, x, h, c):
        forget, take, new, show = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        c = torch.sigmoid(forget + 1) * c + torch.sigmoid(take) * torch.tanh(new)
        return torch.sigmoid(show) * torch.tanh(c), c


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(LETTERS, WIDTH)
        nn.init.normal_(self.letters.weight, std=0.5)
        self.lstm = Lstm()
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, ids):
        x = self.letters(ids)
        h = c = torch.zeros(len(ids), WIDTH)
        outputs = []
        for letter in x.unbind(1):
            h, c = self.lstm(letter, h, c)
            outputs.append(h)
        return self.head(torch.stack(outputs, 1))


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text = torch.tensor(list(b"the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 61))
    torch.manual_seed(0)
    net = Net()
    fully_shard(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0)
    for step in range(1, STEPS + 1):
        rows = (step * ranks + rank) * ROWS + torch.arange(ROWS)
        at = (rows * 37 % 4000)[:, None] + torch.arange(TIME)
        loss = F.cross_entropy(net(text[at]).flatten(0, 1), text[at + 1].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 79 == 1:
            print(f"rank {rank}, step {step}: loss {loss:.3f}")
    model_state, optimizer_state = get_state_dict(net, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state, "step": STEPS}, checkpoint_id="lstm-checkpoints")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
