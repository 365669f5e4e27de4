#!/usr/bin/env python3
"""What PyPI's `transformers` computes for models of many shapes and settings, zshard computes too, or refuses by name; and what zshard exports after training
transformers loads, with the loss that zshard has for it. Where $ZSHARD_PEER_PYTHON (or this Python) has torch and transformers; exit 77 where not.
Usage: transformers_peers_test.py TRAIN [--models N] [--seed N]"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import harness
from huggingface_test import CASES, copied, read_all
from mixtures_test import quantized

LIMIT_S = 300
ENV = {"OMP_NUM_THREADS": "1"}
STEPS = 3
TOLERANCE = 2e-5  # relative, of sums of f32 in another order
REFUSED = 67
RUN = """\
[model]
path = "{folder}"
[data]
kind = "tokens"
train = "{folder}/tokens.bin"
validation_fraction = 0
[train]
steps = {steps}
global_batch = 4
sequence = 32
lr = 1e-3
weight_decay = 0.1
schedule = "constant"
[run]
dir = "{out}"
"""
# Runs in the Python that has the packages. "make DIR SEED COUNT": models, each with its losses. "load FOLDER...": the loss of each over its tokens.
PEER = """
import json, pathlib, random, sys
import torch, transformers as T
T.logging.set_verbosity_error()
VOCAB, LENGTH, STEPS = 97, 32, int(sys.argv[2])
EAGER = {"experts_implementation": "eager"}  # whose widths may be any

def draw(rng):
    heads = rng.choice([1, 2, 3, 4, 6])
    kv = rng.choice([h for h in (1, 2, 3, 4, 6) if heads % h == 0])
    dim = rng.choice([4, 8, 16, 24])
    layers, context = rng.choice([1, 2, 3]), rng.choice([32, 33, 64])
    width = heads * dim
    llama = dict(vocab_size=VOCAB, hidden_size=width, intermediate_size=rng.choice([24, 40, 56]), num_hidden_layers=layers, num_attention_heads=heads,
                 num_key_value_heads=kv, max_position_embeddings=context, bos_token_id=1, eos_token_id=2,
                 pad_token_id=rng.choice([None, None, 0, 7, VOCAB - 1, -2]), tie_word_embeddings=rng.random() < 0.5, rms_norm_eps=rng.choice([1e-5, 1e-6]), rope_theta=rng.choice([10000.0, 500000.0, 1e6]))
    if rng.random() < 0.3: llama.update(hidden_size=heads * rng.choice([4, 6, 10]), head_dim=dim)
    family = rng.choice(["gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma3", "gpt_oss"])
    if family == "gpt2":
        off = dict(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
        return T.GPT2Config(vocab_size=VOCAB, n_embd=width, n_layer=layers, n_head=heads, n_positions=context, n_inner=rng.choice([None, 20, 52]), bos_token_id=1,
                            eos_token_id=2, activation_function=rng.choice(["gelu_new", "gelu_new", "gelu", "relu", "silu", "gelu_pytorch_tanh"]),
                            layer_norm_epsilon=rng.choice([1e-5, 1e-6]), tie_word_embeddings=rng.random() < 0.8, scale_attn_weights=rng.random() < 0.9,
                            scale_attn_by_inverse_layer_idx=rng.random() < 0.1, reorder_and_upcast_attn=rng.random() < 0.1, **off)
    if family == "llama":
        scaling = rng.choice([None, None, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
                              {"rope_type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0},
                              {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}])
        if scaling: llama.update(rope_scaling=scaling)
        return T.LlamaConfig(**llama, attention_bias=rng.random() < 0.25, mlp_bias=rng.random() < 0.25, hidden_act=rng.choice(["silu", "silu", "silu", "gelu", "relu"]))
    if family == "gemma3":
        scaling = rng.choice([{}, {}, {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}])
        types = [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
        return T.Gemma3TextConfig(**{"head_dim": dim, **llama, "hidden_activation": "gelu_pytorch_tanh"}, **scaling, rope_local_base_freq=rng.choice([50.0, 10000.0]), layer_types=types,
                                  sliding_window=rng.choice([1, 5, 64]), query_pre_attn_scalar=rng.choice([dim, dim, dim, 2 * dim]))
    if family == "gpt_oss":
        yarn = {"rope_type": "yarn", "factor": rng.choice([2.0, 32.0]), "original_max_position_embeddings": rng.choice([64, 4096]), "truncate": rng.random() < 0.5}
        experts = rng.choice([1, 3, 4, 8])
        return T.GptOssConfig(**{"head_dim": dim, **llama}, **({"rope_scaling": yarn} if rng.random() < 0.7 else {}), num_local_experts=experts,
                              num_experts_per_tok=rng.choice([k for k in (1, 2, 3) if k <= experts]), sliding_window=rng.choice([1, 5, 64]),
                              layer_types=rng.choice([None, [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]]))
    if family == "mistral": return T.MistralConfig(**llama, sliding_window=rng.choice([None, 1, 5, 16, 64]))
    window = dict(use_sliding_window=rng.random() < 0.4, sliding_window=rng.choice([4, 8]), max_window_layers=rng.choice([0, 1, layers]))
    if family == "qwen2": return T.Qwen2Config(**{**llama, **window})
    return T.Qwen3Config(**{"head_dim": dim, **llama, **window, "attention_bias": rng.random() < 0.25})

def rows(folder):
    tokens = torch.frombuffer(bytearray((folder / "tokens.bin").read_bytes()), dtype=torch.int16).long()
    tokens = tokens.unfold(0, LENGTH + 1, LENGTH)
    return tokens[:, :-1], tokens[:, 1:]

def loss_of(model, x, y): return torch.nn.functional.cross_entropy(model(x).logits.float().flatten(0, 1), y.reshape(-1))

def make(out, seed, count):
    for i in range(count):
        rng = random.Random(seed * 1000 + i)
        torch.manual_seed(seed * 1000 + i)
        config = draw(rng)
        model = T.AutoModelForCausalLM.from_config(config, attn_implementation="eager", **EAGER).float().eval()
        with torch.no_grad():
            for p in model.parameters(): p.add_(0.05 * torch.randn_like(p))
        folder = pathlib.Path(out) / f"{i:03}-{config.model_type}"
        model.save_pretrained(folder)
        (folder / "tokens.bin").write_bytes(torch.randint(0, VOCAB, (4 * LENGTH + 1,)).to(torch.int16).numpy().tobytes())
        x, y = rows(folder)
        decay, rest = ([p for name, p in model.named_parameters() if (p.dim() >= 2 and not name.endswith("bias")) == big] for big in (True, False))
        optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
        losses, norms = [], []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad(): after = loss_of(model, x, y).item()
        (folder / "expected.json").write_text(json.dumps({"losses": losses, "norms": norms, "after": after}))

if sys.argv[1] == "make": make(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
else:
    for folder, data in zip(sys.argv[3::2], sys.argv[4::2]):
        model, info = T.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", output_loading_info=True, **EAGER)
        lost = {k: sorted(v) for k, v in info.items() if v}
        with torch.no_grad(): print(json.dumps([loss_of(model.float().eval(), *rows(pathlib.Path(data))).item(), str(lost) if lost else ""]))
"""


def differs(a, b):
    return not abs(a - b) <= TOLERANCE * abs(b)


def train_model(train, work, folder, report):
    """Whether it was trained rather than refused."""
    out, config = work / "runs" / folder.name, work / "run.toml"
    config.write_text(RUN.format(folder=folder, steps=STEPS, out=out))
    result = harness.run([train, config], LIMIT_S, env=ENV)
    if result.code == REFUSED:
        # Which setting it is; what is neither a setting's name nor a family's would say nothing to the user.
        named = [key for key in json.loads((folder / "config.json").read_text()) if key in result.err]
        report.case(f"{folder.name} is refused: {result.err.strip().splitlines()[-1]}", [] if named else ["no setting is named"], result)
        return False
    problems = [] if result.code == 0 else [f"it ended with {result.code}"]
    if not problems:
        want = json.loads((folder / "expected.json").read_text())
        for step, loss, norm in zip(harness.read_metrics(out), want["losses"], want["norms"], strict=True):
            problems += [f"step {step['step']}: loss {step['loss']}, wanted {loss}"] if differs(step["loss"], loss) else []
            problems += [f"step {step['step']}: gradient norm {step['grad_norm']}, wanted {norm}"] if differs(step["grad_norm"], norm) else []
    report.case(f"{folder.name} trains as transformers trains it", problems, result)
    return result.code == 0


def check_exports(train, work, folders, peer, report):
    pairs = []
    for folder in folders:
        exported = work / "exported" / folder.name
        exported.parent.mkdir(exist_ok=True)
        result = harness.run([train, "--export", exported, work / "runs" / folder.name], LIMIT_S, env=ENV)
        report.case(f"{folder.name} is exported", [] if result.code == 0 else [f"it ended with {result.code}"], result)
        pairs += [exported, folder] if result.code == 0 else []
    loaded = subprocess.run([*peer, "load", str(STEPS), *map(str, pairs)], capture_output=True, text=True, env={**os.environ, **ENV}, timeout=LIMIT_S)
    lines = [json.loads(line) for line in loaded.stdout.splitlines() if line.startswith("[")]
    if len(lines) != len(pairs) // 2:
        report.case("transformers loads every export", [loaded.stderr[-2000:]])
    for (loss, lost), folder in zip(lines, pairs[1::2]):
        after = json.loads((folder / "expected.json").read_text())["after"]
        problems = ([f"loss {loss}, wanted {after}"] if differs(loss, after) else []) + ([f"not loaded as it is: {lost}"] if lost else [])
        report.case(f"transformers loads {folder.name} as it was trained", problems)


def check_mxfp4(train, work, peer, report):
    """A folder in MXFP4, of tests/data, as transformers decodes it."""
    folder = work / "mxfp4"
    blocks, _ = quantized(read_all(CASES / "gpt-oss"))
    copied(work, "gpt-oss", lambda config: config.update(quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head", "model.embed_tokens",
           "model.layers.*.self_attn", "model.layers.*.mlp.router"]}), lambda _: blocks).rename(folder)
    result = harness.run([train, "evaluate", folder, folder / "tokens.bin", "--set", "train.sequence=32"], LIMIT_S, env=ENV)
    loaded = subprocess.run([*peer, "load", str(STEPS), folder, folder], capture_output=True, text=True, env={**os.environ, **ENV}, timeout=LIMIT_S)
    lines = [json.loads(line) for line in loaded.stdout.splitlines() if line.startswith("[")]
    loss = float(result.out.split()[1]) if result.code == 0 else None
    problems = [] if lines and loss and not differs(loss, lines[0][0]) else [f"loss {loss}, transformers has {lines}", loaded.stderr[-500:]]
    report.case("transformers decodes MXFP4 as it is decoded here", problems, result)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("train", type=pathlib.Path)
    parser.add_argument("--models", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    python = os.environ.get("ZSHARD_PEER_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import torch, transformers"], capture_output=True, timeout=LIMIT_S).returncode != 0:
        print(f"skipped: {python} has no torch and transformers (pip install torch transformers, and ZSHARD_PEER_PYTHON)")
        return harness.SKIP
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="transformers_peers.") as name:
        work = pathlib.Path(name)
        (work / "peer.py").write_text(PEER)
        peer = [python, work / "peer.py"]
        made = subprocess.run([*peer, "make", str(STEPS), work / "models", str(args.seed), str(args.models)], capture_output=True, text=True, env={**os.environ, **ENV}, timeout=LIMIT_S)
        report.case(f"transformers makes {args.models} models of seed {args.seed}", [] if made.returncode == 0 else [made.stderr[-2000:]])
        folders = sorted((work / "models").iterdir()) if made.returncode == 0 else []
        trained = [folder for folder in folders if train_model(args.train.resolve(), work, folder, report)]
        report.case("a third of them or more are trained", [] if 3 * len(trained) >= len(folders) > 0 else [f"{len(trained)} of {len(folders)}"])
        check_exports(args.train.resolve(), work, trained, peer, report)
        check_mxfp4(args.train.resolve(), work, peer, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
