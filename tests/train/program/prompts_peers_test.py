#!/usr/bin/env python3
"""Five steps on prompts and answers have the losses that PyPI's `transformers` has with labels of -100, however the documents are spread over micro-batches,
which have unequal numbers of targets, and ranks; where $ZSHARD_PEER_PYTHON (or this Python) has torch and transformers; exit 77 where not.
Usage: prompts_peers_test.py TRAIN"""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import harness

LIMIT_S = 300
MODELS = harness.ROOT / "tests" / "data" / "huggingface"
SEQUENCE, DOCUMENTS = 64, 12
TOLERANCE = 1e-5  # relative, of sums of f32 in another order
RUN = """\
[model]
path = "{model}"
[data]
format = "jsonl"
prompt_field = "q"
field = "a"
train = "answers.jsonl"
validation_fraction = 0
[train]
steps = 5
global_batch = 12
sequence = 64
lr = 1e-2
schedule = "constant"
weight_decay = 0
[run]
dir = "out"
"""
# Runs in the Python that has the packages; all documents are one batch, padded with what counts for nothing.
PEER = """
import json, sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").eval()
lines = [json.loads(line) for line in open(sys.argv[2])]
ids, labels = torch.zeros(len(lines), 64, dtype=torch.long), torch.full((len(lines), 64), -100)
for row, line in enumerate(lines):
    q, a = (list(line[key].encode()) for key in "qa")
    ids[row, :len(q + a)] = torch.tensor(q + a)
    labels[row, len(q):len(q + a)] = torch.tensor(a)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
for _ in range(5):
    optimizer.zero_grad()
    loss = model(ids, labels=labels).loss
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    print(loss.item(), norm)
"""


def write_documents(folder):
    """Each has more than half of a sequence, so that each is in one of its own: all of them are the batch. Answers have 2 to 30 bytes."""
    rng, text, lines = random.Random(5), "the sun rises over a quiet field and the river carries it down to the sea ", []
    for number in range(DOCUMENTS):
        answer, whole = 2 + number * 28 // (DOCUMENTS - 1), rng.randint(SEQUENCE // 2 + 1, SEQUENCE)
        start = rng.randrange(len(text))
        words = (2 * text)[start:start + whole]
        lines.append({"q": words[:-answer], "a": words[-answer:]})
    rng.shuffle(lines)
    (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def check(train, folder, expected, ranks, micro):
    command = [train, folder / "run.toml", "--overwrite", "--set", f"train.micro_batch={micro}"]
    result = harness.run(harness.launch(ranks, command), LIMIT_S, cwd=folder, env={"OMP_NUM_THREADS": "1"})
    if result.code != 0:
        return [str(result)]
    found = [(line["loss"], line["grad_norm"]) for line in harness.read_metrics(folder / "out")]
    far = [f"step {i + 1}: {a}, {b} in transformers" for i, (a, b) in enumerate(zip(found, expected)) if abs(a[0] - b[0]) > TOLERANCE * b[0]]
    return far + ([] if abs(found[0][1] - expected[0][1]) <= TOLERANCE * expected[0][1] else [f"gradient norm {found[0][1]}, {expected[0][1]} in transformers"])


def main():
    train, python = pathlib.Path(sys.argv[1]).resolve(), os.environ.get("ZSHARD_PEER_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True, check=False).returncode != 0:
        print(f"skipped: {python} has no torch and transformers (pip install torch transformers, and ZSHARD_PEER_PYTHON)")
        return harness.SKIP
    report = harness.Report()
    for model in ("gpt2", "qwen2"):
        with tempfile.TemporaryDirectory(prefix="prompts.") as name:
            folder = pathlib.Path(name)
            write_documents(folder)
            (folder / "run.toml").write_text(RUN.format(model=MODELS / model))
            peer = subprocess.run([python, "-c", PEER, str(MODELS / model), str(folder / "answers.jsonl")], capture_output=True, text=True, timeout=LIMIT_S,
                                  check=False, env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
            expected = [tuple(map(float, line.split())) for line in peer.stdout.splitlines()]
            report.case(f"transformers trains {model}", [] if len(expected) == 5 else [peer.stderr[-2000:]])
            for ranks, micro in ((None, 12), (None, 1), (2, 3), (3, 2), (4, 1)):
                if len(expected) == 5:
                    report.case(f"{model} with micro-batches of {micro} on {ranks or 1} ranks", check(train, folder, expected, ranks, micro))
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
