#!/usr/bin/env python3
"""50 steps of `train` on one GPU have the losses that the same 50 steps have on this machine's CPU, within a bound for each dtype. `kjv-tiny`:
as it is. `124M`: GPT-2 124M, two sequences of 64 words of the corpus a step, little enough for the CPU. With `cpu` in the place of the
GPU it tries itself: the CPU with the kernels for every processor, whose sums have another order, against those for this one.
Usage: losses_test.py TRAIN CONFIG BUILD_DIR kjv-tiny|124M f32|bf16 [cpu]"""

import math
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "train" / "program"))

import harness  # noqa: E402
import tiny_run  # noqa: E402

STEPS, LIMIT_S = 50, 180
# Of a loss. f32: sums in other orders, grown over 50 steps of the warm-up. bf16: of each activation 8 bits are kept, and a GPU rounds the
# probabilities of attention too; docs/gpu.md.
BOUNDS = {"f32": 1e-3, "bf16": 2e-2}
GPT2_124M = """\
name = "gpt2-124M"
[model]
preset = "124M"
[data]
kind = "tokens"
validation_fraction = 0
[train]
steps = 50
global_batch = 2
micro_batch = 1
sequence = 64
"""


def word_tokens(text):
    """Each word and each mark its own id, in the order in which they first come: far fewer than GPT-2's 50257."""
    ids = {}
    return [ids.setdefault(word, len(ids)) for word in re.findall(r"\w+|[^\w\s]", text)]


def command(train, config, out, corpus, dtype, device, steps=STEPS):
    sets = tiny_run.options(train__steps=steps, train__warmup=steps, run__dir=out, run__validate_every=0, run__sample_tokens=0, data__train=corpus,
                            device=device, comm__timeout_s=60, precision__param=dtype, precision__reduce="f32")
    return [train, config, *sets]


def differences(found, expected, bound, steps=STEPS):
    """What is wrong with the losses of all steps; nothing where each is within `bound` of the other's."""
    if len(found) != steps or len(expected) != steps:
        return [f"losses of {len(found)} and {len(expected)} steps, not of {steps}"]
    for step, (a, b) in enumerate(zip(found, expected), 1):
        if not all(isinstance(loss, (int, float)) and math.isfinite(loss) for loss in (a, b)):
            return [f"step {step}: a loss of {a}, of the CPU {b}"]
        if abs(a - b) > bound * abs(b):
            return [f"step {step}: a loss of {a}, of the CPU {b}: {abs(a - b) / abs(b):.2e} apart, at most {bound:.0e}"]
    if steps == STEPS and expected[-1] > 0.95 * expected[0]:
        return [f"the CPU's loss goes from {expected[0]} to {expected[-1]}: it does not learn"]
    return []


def losses(out):
    return [line["loss"] for line in harness.read_metrics(out)]


def prepare(what, config, folder, text):
    """(configuration, corpus) of the run."""
    if what == "kjv-tiny":
        return config, text
    tokens = pathlib.Path(folder, "words.bin")
    tiny_run.write_uint16_tokens(tokens, word_tokens(text.read_text(errors="replace")[:2_000_000]))
    small = pathlib.Path(folder, "gpt2-124M.toml")
    small.write_text(GPT2_124M)
    return small, tokens


def main():
    train, config, build_dir = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
    what, dtype, device = sys.argv[4], sys.argv[5], sys.argv[6] if len(sys.argv) > 6 else "cuda"
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="gpu_losses.") as folder:
        text = harness.bible_text(build_dir, folder) or tiny_run.write_files(folder).with_name("corpus.txt")
        config, corpus = prepare(what, config, folder, text)
        outcomes = []
        for name, its_device, env in (("cpu", "cpu", {}), ("gpu", device, {"ZSHARD_ISA": "baseline"} if device == "cpu" else {})):
            out = pathlib.Path(folder, name)
            result = harness.run(command(train, config, out, corpus, dtype, its_device), LIMIT_S, cwd=folder, env=env)
            report.case(f"{what} in {dtype}: {name}", [] if result.code == 0 else [f"exit code {result.code}"], result)
            outcomes.append(losses(out) if result.code == 0 else [])
        expected, found = outcomes
        problems = differences(found, expected, BOUNDS[dtype])
        report.case(f"{what} in {dtype}: losses", problems, result)
        if not problems:
            print(f"losses of {STEPS} steps at most {max(abs(a - b) / b for a, b in zip(found, expected)):.1e} apart, {BOUNDS[dtype]:.0e} allowed")
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
