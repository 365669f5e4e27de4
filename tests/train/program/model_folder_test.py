#!/usr/bin/env python3
"""The README's second story, run as it stands there: a model's folder, a text, three commands, and a folder that is better at that text. And that no rank
holds a model: what the processes had in memory, as the system has counted it. Usage: model_folder_test.py TRAIN"""

import json
import math
import pathlib
import random
import re
import shutil
import struct
import sys
import tempfile

import harness
from huggingface_test import read_tensors, write_tensors

LIMIT_S = 120
CASE = harness.ROOT / "tests" / "data" / "huggingface" / "gpt2"
TOKENIZER = harness.ROOT / "tests" / "data" / "tokenizers" / "gpt2" / "tokenizer.json"
HEADING = "### A model from Hugging Face"
TUNE = """\
[model]
path = "~/models/gpt2"
[data]
kind = "tokens"
train = "notes.bin"
[train]
steps = 12
global_batch = 8
sequence = 32
lr = 1e-2
[run]
validate_every = 0
"""
# Starts what follows, and says how much memory it had at most, in a file of its rank.
WRAPPER = """
import os, sys
child = os.fork()
if child == 0: os.execv(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(child, 0)
with open(os.path.join(sys.argv[1], os.environ.get("OMPI_COMM_WORLD_RANK", "0")), "w") as out: out.write(str(usage.ru_maxrss * 1024))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def story_files(home, work):
    """A GPT-2 with a tokenizer, notes, and the configuration that the README tells of."""
    folder = home / "models" / "gpt2"
    shutil.copytree(CASE, folder)
    shutil.copy(TOKENIZER, folder)
    vocab = len(json.loads(TOKENIZER.read_text())["model"]["vocab"])
    tensors = read_tensors(folder / "model.safetensors")
    dtype, (rows, width), values = tensors["transformer.wte.weight"]
    tensors["transformer.wte.weight"] = (dtype, [vocab, width], (values * 2)[:4 * vocab * width])
    write_tensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": vocab}))
    (work / "notes").mkdir()
    for i in range(3):
        words = random.Random(i).choices(["the river", "was", "quiet", "and", "a bell", "rang", "over", "it."], k=600)
        (work / "notes" / f"{i}.txt").write_text(" ".join(words) + "\n")
    (work / "tune.toml").write_text(TUNE)
    return folder


def story_case(train, report):
    text = (harness.ROOT / "README.md").read_text().split(HEADING)[1]
    commands = re.match(r"\n\n((?: {4}.*\n)+)", text)[1].splitlines()
    report.case("the story has three commands", [] if len(commands) == 3 and all("build/train" in c for c in commands) else commands)
    with tempfile.TemporaryDirectory(prefix="model_folder.") as name:
        home, work = pathlib.Path(name, "home"), pathlib.Path(name, "work")
        home.mkdir()
        (work / "build").mkdir(parents=True)
        (work / "build" / "train").symlink_to(train)
        folder = story_files(home, work)
        env = {"HOME": str(home), "OMP_NUM_THREADS": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}

        def run(command):
            return harness.run(command, LIMIT_S, cwd=work, env=env)

        for command in commands:
            result = run(["sh", "-c", command])
            report.case(command.strip().split("#")[0].strip(), [] if result.code == 0 else [f"it ended with {result.code}"], result)
        losses = []
        for path in (folder, work / "tuned"):
            result = run([str(train), "--evaluate", str(path), "notes.bin", "--set", "train.sequence=32"])
            found = re.match(r"loss (\S+)", result.out)
            losses.append(float(found[1]) if found else math.nan)
        problems = [] if losses[1] < 0.8 * losses[0] else [f"the losses are {losses}"]
        problems += [f"{file} is another" for file in ("tokenizer.json", "generation_config.json") if not is_same(folder, work / "tuned", file)]
        configs = [json.loads(path.read_text()) for path in (folder / "config.json", work / "tuned" / "config.json") if path.exists()]
        problems += [] if configs[0] == configs[-1] and len(configs) == 2 else ["config.json says something else"]
        report.case("what comes out is the model, better at the notes", problems, result)


def is_same(one, other, file):
    return (other / file).exists() and (one / file).read_bytes() == (other / file).read_bytes()


def sparse_llama(folder, layers):
    """A Llama of zeros, of 12.6 MiB a layer, that takes no room on the disk. Returns its bytes."""
    width, hidden, vocab = 512, 1472, 256
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4,
              "vocab_size": vocab, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
    shapes = {"model.embed_tokens.weight": [vocab, width], "lm_head.weight": [vocab, width], "model.norm.weight": [width]}
    for i in range(layers):
        for name, shape in {"self_attn.q_proj": [width, width], "self_attn.k_proj": [width, width], "self_attn.v_proj": [width, width],
                            "self_attn.o_proj": [width, width], "mlp.gate_proj": [hidden, width], "mlp.up_proj": [hidden, width],
                            "mlp.down_proj": [width, hidden], "input_layernorm": [width], "post_attention_layernorm": [width]}.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end := end + 4 * math.prod(shape)]}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + end)
    (folder / "tokens.bin").write_bytes(bytes(2 * 5))
    return end


def peaks(work, ranks, command):
    """What each process had at most, in bytes."""
    counted = work / "counted"
    shutil.rmtree(counted, ignore_errors=True)
    counted.mkdir()
    result = harness.run(harness.launch(ranks, [sys.executable, work / "wrapper.py", counted, *command]), LIMIT_S, env={"OMP_NUM_THREADS": "1"})
    return [int(path.read_text()) for path in sorted(counted.iterdir())], result


def memory_cases(train, report):
    """Above a model of one layer: the larger one's shards, half as much again where the system gives large pages, and two layers of 12.6 MiB, since one
    layer may be gathered before the other's memory is given back. Over MPI, since shm maps what the others have."""
    mib, layers, ranks = 1 << 20, 13, 4
    with tempfile.TemporaryDirectory(prefix="model_folder.") as name:
        work = pathlib.Path(name)
        (work / "wrapper.py").write_text(WRAPPER)
        sizes = [sparse_llama(work / f"of-{n}", n) for n in (1, layers)]
        more = sizes[1] - sizes[0]
        options = ["--set", "shard.prefetch=0", "--set", "comm.transport=mpi"]
        runs = [peaks(work, ranks, [train, "--evaluate", work / f"of-{n}", work / f"of-{n}" / "tokens.bin", *options]) for n in (1, layers)]
        above = [b - a for a, b in zip(runs[0][0], runs[1][0])]
        problems = [] if [r.code for _, r in runs] == [0, 0] and len(above) == ranks else ["it failed"]
        problems += [f"rank {i} has {a // mib} MiB more" for i, a in enumerate(above) if a > 1.5 * more / ranks + 32 * mib]
        report.case(f"a model of {more // mib} MiB more, loaded at {ranks} ranks", problems, f"{[a // mib for a in above]} MiB more\n{runs[1][1]}")
        runs = [peaks(work, None, [train, "--export", work / f"out-{n}", work / f"of-{n}", "--dtype", "bf16"]) for n in (1, layers)]
        above = runs[1][0][0] - runs[0][0][0]
        problems = [] if [r.code for _, r in runs] == [0, 0] and above < 8 * mib else [f"{above // mib} MiB more in memory"]
        report.case(f"a model of {more // mib} MiB more, exported", problems, runs[1][1])


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    report = harness.Report()
    story_case(train, report)
    memory_cases(train, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
