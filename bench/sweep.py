#!/usr/bin/env python3
"""How a training step's cost grows with width, depth, sequence and ranks: runs bench_step over each and prints a Markdown table of what was
measured beside a model of the least that the step could take,

    FLOPs / (product ceiling) + bytes / (copy ceiling)

with both ceilings measured in the same run. FLOPs are bench_step's. Bytes are those that must move through memory at least: see bytes_of_step.
Usage: sweep.py [--build build] [--quick]"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

BASE = {"layers": 12, "heads": 12, "width": 768, "sequence": 256, "micro-batch": 4}
SWEEPS = {
    "width": [{"width": w, "heads": w // 64} for w in (256, 512, 768, 1024)],
    "depth": [{"layers": n} for n in (3, 6, 12, 18)],
    "sequence": [{"sequence": t, "micro-batch": 1024 // t} for t in (64, 256, 1024)],
}
RANKS = (1, 2, 4, 8)
# f32 elements read and written for each token and layer, in widths: norms 4, GELU 8, sums 6, attention 5 forward; norms 8, GELU 12,
# bias sums 9, gradient sums 6, attention 9 backward. What products read and write is theirs.
ACTIVATION_WIDTHS = 67
LOGITS_PASSES = 4  # of tokens x vocabulary: loss reads, its gradient reads and writes, the loss's second look
OPTIMIZER_BYTES = 28 + 4  # of a parameter: weight, two moments read and written, gradient read; gradient read for the norm


def bytes_of_step(result, tokens, ranks, vocab=50304):
    """Over all ranks, which share the machine's memory."""
    params, elem = result["parameters"], 2 if result["dtype"] == "bf16" else 4
    activations = ACTIVATION_WIDTHS * result["width"] * result["layers"] * tokens * elem
    logits = LOGITS_PASSES * tokens * vocab * 4
    moved = 0
    if ranks > 1:
        moved = ranks * 2 * (2 * params * elem) + ranks * (params + params / ranks) * 4  # two gathers, one reduction
    return OPTIMIZER_BYTES * params + activations + logits + moved


def run_json(command):
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"sweep: {' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def copy_ceiling(build):
    """GB/s of the largest team that bench_kernels measured."""
    ceilings = run_json([build / "bench_kernels", "--filter", "scale", "--dtype", "f32", "--json"])["ceilings"]
    return max(c["copy_gb_per_s"] for c in ceilings)


def measure(build, sizes, ranks, dtype, steps, copy_gbs):
    launch = [] if ranks == 1 else ["mpirun", "-q", "--oversubscribe", "-np", ranks]
    options = [part for name, value in sizes.items() for part in (f"--{name}", value)]
    result = run_json([*launch, build / "bench_step", *options, "--dtype", dtype, "--steps", steps, "--profile-steps", 1, "--json"])
    tokens = sizes["micro-batch"] * sizes["sequence"] * ranks
    model_s = tokens * result["flops_per_token"] / (result["product_ceiling_gflops"] * 1e9) + bytes_of_step(result, tokens, ranks) / (copy_gbs * 1e9)
    return result, tokens / model_s


def print_row(what, dtype, result, model):
    print(f"| {what} | {dtype} | {result['parameters'] / 1e6:.0f} | {result['tokens_per_s']:.0f} | {model:.0f} | "
          f"{100 * result['tokens_per_s'] / model:.0f} % | {result['pct_of_product_ceiling']:.0f} % | {result['peak_bytes'] / 2**20:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default="build", help="where bench_step and bench_kernels are")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a two-layer model and two ranks at most: whether it works, not how fast it is")
    args = parser.parse_args()
    copy_gbs = copy_ceiling(args.build)
    print(f"copy ceiling {copy_gbs:.1f} GB/s\n")
    print("| varied | dtype | M parameters | tokens/s | model | measured / model | of the product ceiling | counted peak, MiB a rank |")
    print("|---|---|---|---|---|---|---|---|")
    base = {**BASE, **({"layers": 2, "width": 64, "heads": 2, "sequence": 32} if args.quick else {})}
    for name, variants in SWEEPS.items():
        for variant in variants[:1] if args.quick else variants:
            sizes = {**base, **(variant if not args.quick else {})}
            print_row(f"{name} {sizes[{'depth': 'layers'}.get(name, name)]}", args.dtype, *measure(args.build, sizes, 1, args.dtype, args.steps, copy_gbs))
    for ranks in RANKS[:2] if args.quick else RANKS:
        sizes = {**base, "micro-batch": 2}
        print_row(f"ranks {ranks}, 2 x {base['sequence']} tokens each", args.dtype, *measure(args.build, sizes, ranks, args.dtype, args.steps, copy_gbs))


if __name__ == "__main__":
    main()
