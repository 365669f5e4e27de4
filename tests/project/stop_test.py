#!/usr/bin/env python3
"""A run that is asked to stop ends in order after the step it is in: exit code 75, whole lines in metrics.jsonl, weights saved.
A run that loses a rank ends too. Usage: stop_test.py TRAIN"""

import json
import os
import pathlib
import re
import shlex
import signal
import sys
import tempfile
import textwrap
import time

import harness
import tiny_run

LIMIT_S, STOPPED = 90, 75


def wait_for_steps(metrics, count):
    """Until the run has written that many lines; a run that never does fails by its exit code."""
    deadline = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") >= count:
            return
        time.sleep(0.02)


def run_and_signal(train, ranks, send):
    """(result, run directory's metrics text, files); `send(process)` is called after the third step."""
    with tempfile.TemporaryDirectory(prefix="stop.") as folder:
        config = tiny_run.write_files(folder)
        out = pathlib.Path(folder, "out")

        def on_start(process):
            wait_for_steps(out / "metrics.jsonl", 3)
            send(process)

        command = harness.launch(ranks, [train, config, *tiny_run.options(train__steps=1000000)])
        result = harness.run(command, LIMIT_S, cwd=folder, on_start=on_start)
        text = (out / "metrics.jsonl").read_text() if (out / "metrics.jsonl").exists() else ""
        return result, text, harness.tree(folder)


def problems_of(result, text, files, code):
    problems = [] if result.code == code else [f"exit code {result.code}, expected {code}"]
    problems += ["did not end in time"] if result.timed_out else []
    problems += [f"{len(result.orphans)} processes were left running"] if result.orphans else []
    lines = text.splitlines()
    try:
        steps = [json.loads(line)["step"] for line in lines]
    except ValueError:
        return problems + [f"metrics.jsonl holds half a line: {lines[-1]!r}"]
    problems += [] if len(steps) >= 3 and steps == list(range(steps[0], steps[0] + len(steps))) else [f"steps in metrics.jsonl: {steps[-5:]}"]
    if code == STOPPED:
        problems += [] if harness.weights_hash(result.out) else ["no line `weights: HASH`"]
        problems += [] if "out/model.safetensors" in files else ["no weights in the run directory"]
        problems += [] if "stopped" in result.last_error_line() else [f"the last line does not say so: {result.last_error_line()!r}"]
    return problems


def slurm_script_case(train, report):
    """The batch script of docs/clusters.md, which Slurm signals before the job's time is over; without Slurm, so with a number of ranks."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "clusters.md").read_text()
    script = textwrap.dedent(re.search(r"(    #!/bin/bash\n(?:    .*\n)+)", text).group(1))
    start = "mpirun -q --bind-to none build/train config.toml &"
    with tempfile.TemporaryDirectory(prefix="stop.") as folder:
        command = harness.launch(2, [train, tiny_run.write_files(folder), *tiny_run.options(train__steps=1000000)])
        job, out = pathlib.Path(folder, "job.sh"), pathlib.Path(folder, "out")
        job.write_text(script.replace(start, f"{shlex.join(command)} &"))

        def on_start(process):
            wait_for_steps(out / "metrics.jsonl", 3)
            process.send_signal(signal.SIGUSR1)

        result = harness.run(["bash", job], LIMIT_S, cwd=folder, env={"SLURM_CPUS_PER_TASK": "1"}, on_start=on_start)
        problems = problems_of(result, (out / "metrics.jsonl").read_text(), harness.tree(folder), STOPPED)
        problems += [] if start in script else [f"the script does not start `{start}`"]
    report.case("SIGUSR1 to the script for Slurm", problems, result)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    cases = [
        ("Ctrl-C, one rank", None, lambda p: p.send_signal(signal.SIGINT), STOPPED),
        ("SIGTERM, one rank", None, lambda p: p.send_signal(signal.SIGTERM), STOPPED),
        ("Ctrl-C at mpirun, 3 ranks", 3, lambda p: p.send_signal(signal.SIGINT), 1),  # mpirun's own code, whatever the ranks return
        ("SIGUSR1 to mpirun, 3 ranks", 3, lambda p: p.send_signal(signal.SIGUSR1), STOPPED),
        ("SIGUSR1 to one rank of 3", 3, lambda p: os.kill(harness.children(p.pid)[1], signal.SIGUSR1), STOPPED),
        ("one rank of 3 is killed", 3, lambda p: os.kill(harness.children(p.pid)[1], signal.SIGKILL), 128 + signal.SIGKILL),
    ]
    for name, ranks, send, code in cases:
        result, text, files = run_and_signal(train, ranks, send)
        report.case(name, problems_of(result, text, files, code), result)
    slurm_script_case(train, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
