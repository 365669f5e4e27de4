#!/usr/bin/env python3
"""zshard beside PyTorch on one GPU, in one run: the training step of several models (bench_step and gpu_step.py in turn) and attention and copies
(bench_kernels and gpu_kernels.py). Prints one table. See README.md beside this file."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from compare import Failure, end_on_signal, median, positive, ratio, run

HERE = pathlib.Path(__file__).resolve().parent
OURS, PEER = "zshard", "PyTorch"
# preset, sequences in a micro-batch
MODELS = ["124M,16", "355M,8", "1.5B,4"]
KERNELS = ("attention_forward", "attention_backward", "copy")


def model(text):
    preset, _, micro_batch = text.partition(",")
    return preset, positive(micro_batch or "1")


def parse(arguments):
    parser = argparse.ArgumentParser(prog="compare_gpu", description=__doc__.split(". ")[0])
    parser.add_argument("--model", type=model, action="append", metavar="PRESET,MICRO_BATCH", help=f"repeatable; default: {'  '.join(MODELS)}")
    parser.add_argument("--no-kernels", action="store_true", help="steps only")
    parser.add_argument("--no-steps", action="store_true", help="kernels only")
    parser.add_argument("--rounds", type=positive, default=3, help="how often each of the two runs")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--sequence", type=positive, default=1024)
    parser.add_argument("--steps", type=positive, default=10, help="timed steps of each run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of zshard's configuration; repeatable")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the program")
    parser.add_argument("--build", default="build", help="where bench_step and bench_kernels are")
    parser.add_argument("--python", default=os.environ.get("ZSHARD_PEER_PYTHON", sys.executable),
                        help="of the environment with PyTorch; default: $ZSHARD_PEER_PYTHON, else the one that runs this")
    parser.add_argument("--timeout", type=positive, default=900, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    options = parser.parse_args(arguments)
    options.model = options.model or [model(text) for text in MODELS]
    options.ranks, options.threads = 1, len(os.sched_getaffinity(0))
    return options


def commands(options, preset, micro_batch):
    step = ["--preset", preset, "--dtype", options.dtype, "--micro-batch", str(micro_batch), "--sequence", str(options.sequence), "--steps",
            str(options.steps), "--device", options.device, "--json"]
    tries = ["--no-compile"] if options.device == "cpu" else []
    return {OURS: [f"{options.build}/bench_step", *step, *(word for setting in options.set for word in ("--set", setting))],
            PEER: [options.python, str(HERE / "gpu_step.py"), *step, *tries]}


def alternated(options, words):
    """Reports by name; who begins changes from round to round."""
    reports = {OURS: [], PEER: []}
    for index in range(options.rounds):
        for name in (OURS, PEER) if index % 2 == 0 else (PEER, OURS):
            reports[name].append(run(name, words[name], options))
    return reports


def step_row(options, preset, micro_batch):
    reports = alternated(options, commands(options, preset, micro_batch))
    row = {"what": f"{preset} {options.dtype}, {micro_batch} x {options.sequence} tokens", "gpu": reports[OURS][0]["gpu"],
           "peer_gpu": reports[PEER][0]["gpu"], "peer_version": reports[PEER][0]["version"]}
    for field in ("tokens_per_s", "step_ms", "pct_of_product_ceiling", "peak_bytes"):
        ours, peer = median(reports[OURS], field), median(reports[PEER], field)
        row[field] = {OURS: ours, PEER: peer, "ratio": ratio(ours, peer)}
    return row


def kernel_rows(options):
    """Of each kernel and shape that both have: the fastest call of all rounds."""
    ours = [f"{options.build}/bench_kernels", "--device", options.device, "--dtype", options.dtype, "--json"]
    best = {}
    for index in range(options.rounds):
        words = {OURS: [[*ours, "--filter", kernel] for kernel in ("attention", "copy ")],
                 PEER: [[options.python, str(HERE / "gpu_kernels.py"), "--dtype", options.dtype, "--device", options.device]]}
        for name in (OURS, PEER) if index % 2 == 0 else (PEER, OURS):
            for command in words[name]:
                for row in run(name, command, options)["kernels"]:
                    if row["kernel"] in KERNELS:
                        times = best.setdefault((row["kernel"], row["shape"]), {"flops": row["flops"], "bytes": row["bytes"]})
                        times[name] = min(times.get(name, row["ms_min"]), row["ms_min"])
    return [{"what": f"{kernel} {shape} {options.dtype}", "flops": t["flops"], "bytes": t["bytes"], "ms": {OURS: t[OURS], PEER: t[PEER],
             "ratio": ratio(t[PEER], t[OURS])}} for (kernel, shape), t in best.items() if OURS in t and PEER in t]


def rate(row, name):
    ms = row["ms"][name]
    return f"{row['flops'] / ms * 1e-9:.1f} TFLOP/s" if row["flops"] else f"{row['bytes'] / ms * 1e-6:.0f} GB/s"


def text_of(result):
    lines = [f"{'':<46}{OURS:>16}{PEER:>16}{'ratio':>8}"]
    for row in result["steps"]:
        for label, field, unit, digits in (("tokens/s", "tokens_per_s", 1, 0), ("% of its product", "pct_of_product_ceiling", 1, 1),
                                           ("peak memory, MiB", "peak_bytes", 2**20, 0)):
            cells = "".join(f"{'unknown' if row[field][n] is None else f'{row[field][n] / unit:.{digits}f}':>16}" for n in (OURS, PEER))
            both = row[field]["ratio"]
            lines.append(f"{row['what'] if field == 'tokens_per_s' else '':<30}{label:<16.16}{cells}{'' if both is None else f'{both:.2f}':>8}")
    for row in result["kernels"]:
        lines.append(f"{row['what']:<46}{rate(row, OURS):>16}{rate(row, PEER):>16}{row['ms']['ratio']:>8.2f}")
    machine = result["gpu"] or ("the CPU: no figure of a GPU" if result["device"] == "cpu" else "a GPU")
    head = f"{machine}; PyTorch {result['peer_version'] or 'as installed'}; {result['rounds']} alternated runs: of steps the medians, of kernels the fastest call"
    return "\n".join([head, *lines])


def check(options):
    """Before anything is timed: the programs are there, and a PyTorch with such a device."""
    for program in (f"{options.build}/bench_step", f"{options.build}/bench_kernels", options.python):
        if shutil.which(program) is None:
            raise Failure(f"there is no program {program}")
    done = subprocess.run([options.python, str(HERE / "gpu_step.py"), "--check", "--device", options.device], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=options.timeout)
    if done.returncode != 0:
        raise Failure((done.stderr.splitlines() or [f"{PEER} cannot run here"])[-1], done.returncode)


def main(arguments):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, end_on_signal)
    signal.signal(signal.SIGINT, end_on_signal)
    try:
        check(options)
        steps = [] if options.no_steps else [step_row(options, *one) for one in options.model]
        result = {"program": "compare_gpu", "rounds": options.rounds, "device": options.device, "gpu": steps[0]["gpu"] if steps else None,
                  "peer_version": steps[0]["peer_version"] if steps else None, "steps": steps,
                  "kernels": [] if options.no_kernels else kernel_rows(options)}
    except Failure as failure:
        print(f"compare_gpu: {failure}", file=sys.stderr)
        return failure.code
    print(json.dumps(result) if options.json else text_of(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
