#!/usr/bin/env python3
"""The README's main job, for a few steps, on one rank without mpirun and on 1, 2 and 4 with it: it ends well, writes what the README
says, and its loss falls. With --whole: all its steps on four ranks; the validation loss must end below 1.65 nats a byte.
Usage: main_job_test.py TRAIN CONFIG BUILD_DIR [--whole]"""

import json
import math
import pathlib
import sys
import tempfile

import harness
import tiny_run

KEYS = {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_ms", "peak_bytes", "allocations"}
STEPS = 4
LIMIT_NATS = 1.65


def check_metrics(metrics):
    problems = []
    if [m.get("step") for m in metrics] not in (list(range(1, STEPS + 1)), list(range(STEPS))):
        problems.append(f"steps are {[m.get('step') for m in metrics]}, expected {STEPS} in a row")
    for m in metrics:
        if not KEYS <= set(m):
            return problems + [f"keys missing from metrics.jsonl: {sorted(KEYS - set(m))}"]
        if not all(isinstance(m[k], (int, float)) and math.isfinite(m[k]) for k in KEYS):
            return problems + [f"not a finite number somewhere in {m}"]
    if metrics:
        if not 4.5 < metrics[0]["loss"] < 7:
            problems.append(f"the first loss is {metrics[0]['loss']}: far from ln(256) = 5.55")
        if not metrics[-1]["loss"] < metrics[0]["loss"]:
            problems.append(f"the loss did not fall: {[m['loss'] for m in metrics]}")
        if not any(m.get("val_loss") is not None for m in metrics):
            problems.append("no val_loss although run.validate_every is set")
        if not all(m["tokens"] > 0 and m["tokens_per_s"] > 0 and m["step_ms"] > 0 and m["peak_bytes"] > 0 for m in metrics):
            problems.append("a count or a time is not positive")
        if any(m["allocations"] != (1 if m is metrics[0] else 0) for m in metrics):
            problems.append(f"memory was allocated more often than once: {[m['allocations'] for m in metrics]}")
    return problems


def run_job(train, config, corpus, ranks, report):
    name = "without mpirun" if ranks is None else f"{ranks} ranks"
    with tempfile.TemporaryDirectory(prefix="main_job.") as folder:
        out = pathlib.Path(folder, "out")
        sets = tiny_run.options(train__steps=STEPS, train__warmup=1, run__dir=f"{out}", run__validate_every=2, run__validate_batches=1, run__sample_tokens=16)
        command = harness.launch(ranks, [train, config, *sets, "--set", f"data.train={json.dumps(str(corpus))}"])
        result = harness.run(command, 150, cwd=folder)
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        if "\r" in result.out or "\x1b" in result.out:
            problems.append("the live line was printed though stdout is a file")  # mpirun gives ranks a terminal of its own
        if result.timed_out:
            problems.append("did not end in time")
        if result.orphans:
            problems.append(f"{len(result.orphans)} processes were left running")
        if result.code == 0:
            problems += check_metrics(harness.read_metrics(out))
            problems += [] if harness.weights_hash(result.out) else ["no line `weights: HASH`"]
            problems += [] if (out / "config.toml").is_file() else ["no config.toml in the run directory"]
        report.case(f"main job, {name}", problems, result)


def run_whole_job(train, config, corpus, report):
    with tempfile.TemporaryDirectory(prefix="main_job.") as folder:
        out = pathlib.Path(folder, "out")
        sets = ["--set", f"data.train={json.dumps(str(corpus))}", "--set", f"run.dir={out}"]
        result = harness.run(harness.launch(4, [train, config, *sets]), 1500, cwd=folder)
        problems = [] if result.code == 0 else [f"exit code {result.code}"]
        if result.code == 0:
            loss = harness.read_metrics(out)[-1].get("val_loss")
            problems += [] if loss is not None and loss < LIMIT_NATS else [f"the validation loss ends at {loss}, expected below {LIMIT_NATS}"]
            print(f"validation loss {loss}")
        report.case("the whole main job, 4 ranks", problems, result)


def main():
    train, config, build_dir = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="main_job.") as folder:
        corpus = harness.bible_text(build_dir, folder)
        if corpus is None:
            print("skipped: neither the corpus nor the bible program is here")
            return harness.SKIP
        if "--whole" in sys.argv[4:]:
            run_whole_job(train, config, corpus, report)
            return report.exit_code()
        for ranks in (None, 1, 2, 4):
            run_job(train, config, corpus, ranks, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
