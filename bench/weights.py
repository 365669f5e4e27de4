#!/usr/bin/env python3
"""How fast a model's folder is loaded and exported, beside what the file system gives: a Llama of random values is made in a folder of its own under DIR,
then read, copied and synced by this program in pieces of 1 MiB, and loaded and exported by train. Each line is the best of the rounds. A file that
is read has been dropped from the page cache with --cold, else it is there.
Usage: weights.py [--build build] [--dir DIR] [--mib 1024] [--rounds 3] [--cold]"""

import argparse
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time

WIDTH, HIDDEN, VOCAB, PIECE = 1024, 2816, 512, 1 << 20


def shapes_of(layers):
    shapes = {"model.embed_tokens.weight": [VOCAB, WIDTH], "lm_head.weight": [VOCAB, WIDTH], "model.norm.weight": [WIDTH]}
    for i in range(layers):
        for name, shape in {"self_attn.q_proj": [WIDTH, WIDTH], "self_attn.k_proj": [WIDTH, WIDTH], "self_attn.v_proj": [WIDTH, WIDTH],
                            "self_attn.o_proj": [WIDTH, WIDTH], "mlp.gate_proj": [HIDDEN, WIDTH], "mlp.up_proj": [HIDDEN, WIDTH],
                            "mlp.down_proj": [WIDTH, HIDDEN], "input_layernorm": [WIDTH], "post_attention_layernorm": [WIDTH]}.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    return shapes


def make_model(folder, mib, dtype):
    """Of about so many MiB in its file. Returns the bytes of its weights."""
    size = {"F32": 4, "BF16": 2}[dtype]
    layer = sum(math.prod(shape) for shape in shapes_of(1).values()) - sum(math.prod(shape) for shape in shapes_of(0).values())
    layers = max(1, (mib << 20) // (size * layer))
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": layers,
              "num_attention_heads": 8, "vocab_size": VOCAB, "max_position_embeddings": 64}
    header, end = {}, 0
    for name, shape in shapes_of(layers).items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end := end + size * math.prod(shape)]}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    text = json.dumps(header).encode()
    # Small values, whatever the rest of their bits are: of f32 the last byte, of bf16 too, is sign and exponent.
    values = bytearray(os.urandom(PIECE))
    values[size - 1::size] = b"\x3c" * (PIECE // size)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end, PIECE):
            out.write(values[:min(PIECE, end - at)])
        out.flush()
        os.fsync(out.fileno())
    for windows in (1, 3):
        (folder / f"tokens-{windows}.bin").write_bytes(bytes(2 * (2 * windows + 1)))
    return end


def drop(path, is_cold):
    if is_cold:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path):
    buffer = bytearray(PIECE)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def copy(path, to):
    buffer = bytearray(PIECE)
    with open(path, "rb", buffering=0) as source, open(to, "wb", buffering=0) as out:
        while count := source.readinto(buffer):
            out.write(memoryview(buffer)[:count])
        os.fsync(out.fileno())
    to.unlink()


def call(*command):
    subprocess.run([str(c) for c in command], check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def seconds(work):
    begin = time.monotonic()
    work()
    return time.monotonic() - begin


def measure(train, folder, scratch, args):
    """Seconds by name, the best of the rounds. Loading: an evaluation of one window less the time of a window, and less the program's start."""
    weights, times = folder / "model.safetensors", {}

    def take(name, value):
        times[name] = min(value, times.get(name, math.inf))

    def export(suffix, *options):
        drop(weights, args.cold)
        out = scratch / f"out{suffix}"
        taken = seconds(lambda: call(train, "--export", out, folder, *options))
        shutil.rmtree(out) if out.is_dir() else out.unlink()
        return taken

    for _ in range(args.rounds):
        drop(weights, args.cold)
        take("read", seconds(lambda: read(weights)))
        evaluations = []
        for windows in (1, 3):
            drop(weights, args.cold)
            evaluations.append(seconds(lambda: call(train, "--evaluate", folder, folder / f"tokens-{windows}.bin", "--set", "train.sequence=2",
                                                    "--set", "train.micro_batch=1")))
        start = seconds(lambda: call(train, "--verify-weights", folder))
        take("load", evaluations[0] - start - max(0, evaluations[1] - evaluations[0]) / 2)
        drop(weights, args.cold)
        take("copy", seconds(lambda: copy(weights, scratch / "copy")))
        for dtype in ("f32", "bf16"):
            take(f"export {dtype}", export("", "--dtype", dtype))
        take("export q8_0", export(".gguf", "--dtype", "q8_0"))
    return times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default="build")
    parser.add_argument("--dir", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    train = (args.build / "train").resolve()
    print("| file | what | s | GB/s of the file | of reading | of copying |\n|---|---|---|---|---|---|")
    for dtype in ("F32", "BF16"):
        with tempfile.TemporaryDirectory(dir=args.dir, prefix="weights.") as name:
            folder, scratch = pathlib.Path(name, "model"), pathlib.Path(name)
            size = make_model(folder, args.mib, dtype)
            times = measure(train, folder, scratch, args)
            for what, taken in times.items():
                shares = " | ".join(f"{100 * times[other] / taken:.0f} %" for other in ("read", "copy"))
                print(f"| {dtype} | {what} | {taken:.2f} | {size / taken / 1e9:.2f} | {shares} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
