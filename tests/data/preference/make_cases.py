#!/usr/bin/env python3
"""Makes what five AdamW steps on pairs of texts give for each loss, from the adapter tests/data/lora/gpt2: log probabilities by PyTorch and peft, the
losses by the formulas of the papers that docs/fine-tuning.md names, written out here. Bytes are the tokens.
Usage: make_cases.py DIR   (needs torch, transformers, peft)"""

import json
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
BETA, SMOOTHING, MARGIN = 0.3, 0.1, 0.4
PAIRS = [("the sun ", "rises over a field", "is a fish"), ("a river", " runs down to the sea", " sings"), ("", "quiet", "loud and long"), ("so it ", "is", "was, they say")]


def log_p(model, prompt, answer, torch):
    """(sum, tokens) of the log probabilities of the answer's tokens that have one before them."""
    ids = torch.tensor([list((prompt + answer).encode())])
    each = torch.log_softmax(model(ids).logits.float()[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    counted = each[max(0, len(prompt.encode()) - 1):]
    return counted.sum(), len(counted)


def pair_loss(name, chosen, rejected, torch):
    """Loss of one pair, and its two rewards; each argument: the policy's (sum, tokens), and the reference's sum."""
    per = [1 if name == "dpo" else 1 / one[0][1] for one in (chosen, rejected)]
    gains = [(one[0][0] - (0 if name == "simpo" else one[1])) * scale for one, scale in zip((chosen, rejected), per)]
    difference = gains[0] - gains[1]
    sigmoid = torch.nn.functional.logsigmoid
    if name == "ipo":
        loss = (difference - 1 / (2 * BETA)) ** 2
    else:
        z = BETA * difference - (MARGIN if name == "simpo" else 0)
        loss = -(1 - SMOOTHING) * sigmoid(z) - SMOOTHING * sigmoid(-z)
    return loss, BETA * gains[0].item(), BETA * gains[1].item()


def five_steps(name, torch, transformers, peft):
    base = HERE.parent / "huggingface" / "gpt2"
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    model = peft.PeftModel.from_pretrained(model, HERE.parent / "lora" / "gpt2", is_trainable=True).eval()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    steps = []
    for _ in range(5):
        with torch.no_grad(), model.disable_adapter():
            reference = [[log_p(model, prompt, answer, torch)[0] for answer in answers] for prompt, *answers in PAIRS]
        optimizer.zero_grad()
        losses, chosen, rejected = [], [], []
        for (prompt, *answers), before in zip(PAIRS, reference):
            both = [(log_p(model, prompt, answer, torch), old) for answer, old in zip(answers, before)]
            loss, *rewards = pair_loss(name, *both, torch)
            losses.append(loss)
            chosen.append(rewards[0])
            rejected.append(rewards[1])
        loss = sum(losses) / len(losses)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm, "rewards_chosen": sum(chosen) / len(PAIRS), "rewards_rejected": sum(rejected) / len(PAIRS),
                      "rewards_accuracy": sum(a > b for a, b in zip(chosen, rejected)) / len(PAIRS)})
    return steps


def main():
    import peft
    import torch
    import transformers
    out = pathlib.Path(sys.argv[1])
    (out / "pairs.jsonl").write_text("".join(json.dumps({"prompt": p, "chosen": c, "rejected": r}) + "\n" for p, c, r in PAIRS))
    want = {"peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__, "beta": BETA, "label_smoothing": SMOOTHING, "margin": MARGIN,
            "steps": "lr 1e-3, betas 0.9 0.95, eps 1e-8, weight decay 0.1, clip 1.0, the 4 pairs of pairs.jsonl; no smoothing of ipo"}
    for name in ("dpo", "ipo", "simpo"):
        want[name] = five_steps(name, torch, transformers, peft)
        assert all(math.isfinite(step["loss"]) for step in want[name])
        print(name, [round(step["loss"], 4) for step in want[name]])
    (out / "expected.json").write_text(json.dumps(want, indent=1) + "\n")


if __name__ == "__main__":
    main()
