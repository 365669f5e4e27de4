#!/usr/bin/env python3
"""What transformers computes of the models here with a pad_token_id, where every third token is that one: the gradient's norm and the losses of five AdamW
steps, into padding.json. Usage: make_padding.py   (needs torch, transformers)"""

import json
import pathlib

import numpy
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
# As config.json has it; below 0 it counts from the end of the vocabulary, as in torch.
CASES = {"llama": 0, "qwen2": 7, "qwen3": 319, "mistral-window": -3}
LENGTH, ROWS = 64, 4


def batch_of(folder, pad):
    stream = torch.from_numpy(numpy.fromfile(folder / "tokens.bin", dtype="<u2").astype("int64"))
    stream[::3] = pad
    windows = stream[:ROWS * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH)
    return windows[:, :-1], windows[:, 1:]


def five_steps(model, x, y):
    decayed, others = ([p for p in model.parameters() if (p.dim() >= 2) == big] for big in (True, False))
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(x).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    return {"grad_norm": norms[0], "five_adamw_steps": {"losses": losses}}


def main():
    torch.set_num_threads(1)
    wanted = {}
    for case, pad in CASES.items():
        config = transformers.AutoConfig.from_pretrained(HERE / case)
        config.pad_token_id = pad
        model = transformers.AutoModelForCausalLM.from_pretrained(HERE / case, config=config, attn_implementation="eager").float().eval()
        row = model.model.embed_tokens.padding_idx
        wanted[case] = {"pad_token_id": pad, "row": row, **five_steps(model, *batch_of(HERE / case, row))}
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    (HERE / "padding.json").write_text(json.dumps({"made with": versions, "cases": wanted}, indent=1) + "\n")


main()
