#!/usr/bin/env python3
"""`train` with cuda.tune_products chooses the algorithms of its products behind the first step, saves them with a checkpoint, and goes on from that
by the same ones. On this machine's GPU, or on one that is emulated.
Usage: tuned_test.py TRAIN [EMULATED_GPU]"""

import json
import pathlib
import re
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "train" / "program"))

import harness  # noqa: E402
import tiny_run  # noqa: E402

LIMIT_S, STEPS = 120, 4
CHOSEN = r"train: note: (products.*): (\d+ of \d+) by another algorithm than cuBLASLt's first, "


def environment(folder, emulated_gpu):
    if emulated_gpu is None:
        return {}
    for name in ("libcuda.so.1", "libcublasLt.so.13"):
        (folder / name).symlink_to(pathlib.Path(emulated_gpu).resolve())
    return {"LD_LIBRARY_PATH": str(folder)}


def check(result, what):
    """What it says, and the weights."""
    found = re.findall(CHOSEN, result.err)
    problems = [] if result.code == 0 else [f"exit code {result.code}"]
    problems += [] if [kind for kind, _ in found] == [what] else [f"what is said of products: {found}"]
    return problems, [counts for _, counts in found], harness.weights_hash(result.out)


def saved(folder, step):
    return json.loads((folder / "checkpoints" / f"step-{step}" / "manifest.json").read_text())["manifest"]["attributes"].get("products.algorithms")


def main():
    train, emulated_gpu, report = harness.begin(), sys.argv[2:], harness.Report()
    with tempfile.TemporaryDirectory(prefix="tuned.") as name:
        folder = pathlib.Path(name)
        config = tiny_run.write_files(folder)
        env = environment(folder, *emulated_gpu or [None])
        sets = tiny_run.options(device="cuda", cuda__share_gpu=True, cuda__tune_products=True, train__steps=STEPS, train__global_batch=2, run__sample_tokens=0,
                                checkpoint__every=2, checkpoint__keep=0)
        whole = harness.run([train, config, *sets], LIMIT_S, cwd=folder, env=env)
        problems, counts, weights = check(whole, "products")
        problems += ["no other algorithm is fast"] if emulated_gpu and counts and counts[0].startswith("0 ") else []
        report.case("products are chosen behind the first step", problems, whole)
        if problems:
            return report.exit_code()
        goes_on = [*sets, *tiny_run.options(run__dir="second"), "--resume", folder / "out" / "checkpoints" / "step-2"]
        result = harness.run([train, config, *goes_on], LIMIT_S, cwd=folder, env=env)
        problems, again, same = check(result, "products as in the checkpoint")
        problems += [] if (again, same) == (counts, weights) else [f"{again} and weights {same} instead of {counts} and {weights}"]
        texts = {saved(folder / run, step) for run, step in (("out", 2), ("out", 4), ("second", 4))}
        problems += [] if len(texts) == 1 and None not in texts else [f"saved are {texts}"]
        report.case("a run goes on by what was chosen", problems, result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
