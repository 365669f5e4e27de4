#!/usr/bin/env python3
"""Steps of LoRA adapters on a model's folder by peft, as `build/train` takes them from the same tokens: prints each step's loss and seconds, and the largest
resident set of the process. Results: ../results/2026-11-29-adapter-memory.md.
Usage: adapter_steps.py MODEL_FOLDER TOKENS.bin [--recompute] [--dora]   (needs torch, transformers, peft)"""

import argparse
import resource
import time


def batches(path, steps, rows, length):
    """The first samples of a file of 16-bit tokens, as windows."""
    import numpy
    import torch
    stream = torch.from_numpy(numpy.fromfile(path, dtype="<u2").astype("int64"))
    windows = stream[:steps * rows * length + 1].unfold(0, length + 1, length)
    return windows.reshape(steps, rows, length + 1)


def main():
    parser = argparse.ArgumentParser(prog="adapter_steps")
    parser.add_argument("model")
    parser.add_argument("tokens")
    parser.add_argument("--recompute", action="store_true", help="each block again in backward")
    parser.add_argument("--dora", action="store_true")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=2, help="samples of a step, one a micro-batch")
    parser.add_argument("--sequence", type=int, default=128)
    options = parser.parse_args()
    import peft
    import torch
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16)
    config = peft.LoraConfig(r=options.rank, lora_alpha=options.rank, target_modules="all-linear", use_dora=options.dora, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config).train()
    if options.recompute:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    print(f"peft {peft.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, {sum(p.numel() for p in trained)} trained")
    for step, rows in enumerate(batches(options.tokens, options.steps, options.rows, options.sequence), 1):
        begin, total = time.monotonic(), 0.0
        for row in rows:
            logits = model(row[None, :-1]).logits.float()
            loss = torch.nn.functional.cross_entropy(logits[0], row[1:]) / len(rows)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {total:.4f}, {time.monotonic() - begin:.2f} s")
    print(f"resident at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 * 1.024:.2f} GB")


if __name__ == "__main__":
    main()
