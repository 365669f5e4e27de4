#!/usr/bin/env python3
"""A run that is asked to stop, or that knows when it has to, ends in order, between two micro-batches if need be: exit code 75, whole lines
in metrics.jsonl, a checkpoint and weights saved; and goes on from there as if it had not been interrupted. A run that loses a rank ends too.
Usage: stop_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

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
# Open MPI's mpirun ends with a code of its own, whatever the ranks return; Hydra passes on what they return.
OF_LAUNCHER = STOPPED if harness.is_mpich() else 1
KILLED = signal.SIGKILL if harness.is_mpich() else 128 + signal.SIGKILL
KILLS_LAUNCHER = ("SIGUSR2 to mpirun, 3 ranks", "SIGHUP to mpirun, 3 ranks") if harness.is_mpich() else ()  # Hydra does not pass these on
HOW_TO_STOP = "SIGTERM or SIGUSR1 to mpiexec" if harness.is_mpich() else "SIGUSR1 to mpirun"


def ended_with(result, code):
    """Hydra forgets what its ranks return when it has passed a signal on: always with one rank, now and then with several."""
    return result.code == code or (harness.is_mpich() and code == STOPPED and result.code == 0)


def wait_for_steps(metrics, count):
    """Until the run has written that many lines; a run that never does fails by its exit code."""
    deadline = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") >= count:
            return
        time.sleep(0.02)


def wait_for_path(path):
    deadline = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < deadline and not path.exists():
        time.sleep(0.01)


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
    problems = [] if ended_with(result, code) else [f"exit code {result.code}, expected {code}"]
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
    """The batch script of docs/clusters.md with mpirun, which Slurm signals before the job's time is over; without Slurm, so with a number of ranks."""
    text = (pathlib.Path(__file__).resolve().parents[3] / "docs" / "clusters.md").read_text()
    script = textwrap.dedent(next(block for block in re.findall(r"    #!/bin/bash\n(?:    .*\n)+", text) if "mpirun" in block))
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


STEPS = 4
WHOLE = {"train__deterministic": True, "train__steps": STEPS, "run__sample_tokens": 0}
SAME = ("step", "loss", "grad_norm", "lr", "tokens", "val_loss")


def numbers(run_dir):
    return [{key: line[key] for key in line if key in SAME or key.startswith("task/")} for line in harness.read_metrics(run_dir)]


def goes_on_problems(command, folder, whole):
    """Of a stopped run in `folder`/out: it must end as the whole one, whose hash and numbers these are."""
    result = harness.run([*command, "--resume", "latest"], LIMIT_S, cwd=folder)
    problems = [] if result.code == 0 else [f"exit code {result.code} of the run that goes on: {result.last_error_line()}"]
    problems += [] if harness.weights_hash(result.out) == whole[0] else ["other weights than the run that was not interrupted"]
    return problems + ([] if numbers(folder / "out") == whole[1] else [f"other metrics: {numbers(folder / 'out')}"])


def cut_short(train, ranks, keys, fault, wait):
    """(problems, result, steps done): a run in which `fault` makes the place slow where it is stopped, once `wait(run directory)` returns."""
    with tempfile.TemporaryDirectory(prefix="stop.") as name:
        folder = pathlib.Path(name)
        command = harness.launch(ranks, [train, tiny_run.write_files(folder), *tiny_run.options(**WHOLE, **keys)])
        whole = harness.run([*command, "--set", "run.dir=whole"], LIMIT_S, cwd=folder)
        wanted = harness.weights_hash(whole.out), numbers(folder / "whole")

        def on_start(process):
            wait(folder / "out")
            process.send_signal(signal.SIGUSR1)

        result = harness.run(command, LIMIT_S, cwd=folder, env={"TRAIN_FAULT": fault}, on_start=on_start)
        lines = harness.read_metrics(folder / "out")
        checkpoints = sorted(path.name for path in (folder / "out/checkpoints").glob("*"))
        problems = [] if ended_with(result, STOPPED) else [f"exit code {result.code}, expected {STOPPED}"]
        problems += [] if "train: stopped on request after step" in result.last_error_line() else ["the last line does not say that it was stopped"]
        problems += [] if checkpoints == [f"step-{len(lines)}"] else [f"checkpoints {checkpoints} after {len(lines)} steps"]
        return problems + goes_on_problems(command, folder, wanted), result, lines


def within_a_step(train, ranks, report, **keys):
    """Of the third step only some micro-batches have been done: it is dropped."""
    def in_third_step(run):
        wait_for_steps(run / "metrics.jsonl", 2)
        time.sleep(0.4)

    problems, result, lines = cut_short(train, ranks, keys, f"compute@rank=0:delay={100 if ranks == 1 else 200}", in_third_step)
    problems += [] if len(lines) == 2 else [f"{len(lines)} steps are done, 2 had been when it was asked"]
    report.case(f"within a step, {ranks} ranks{', ' + str(keys) if keys else ''}", problems, result)


def within_an_accumulation(train, ranks, report):
    """The same where gradients are not reduced before the last micro-batch."""
    within_a_step(train, ranks, report, shard__strategy="zero1")


def within_a_validation(train, ranks, report):
    """After the first step; the run that goes on makes up for it."""
    local = 24 // ranks  # micro-batches of a step on each rank, each of which reads its data once
    slow = ";".join(f"data.load@rank=0,hit={hit}:delay=500" for hit in range(local + 1, local + 21))

    def in_validation(run):
        wait_for_path(run / "metrics.jsonl")
        time.sleep(4)

    keys = {"run__validate_every": 1, "data__validation_fraction": 0.5}
    problems, result, lines = cut_short(train, ranks, keys, slow, in_validation)
    problems += [] if len(lines) == 1 and "val_loss" not in lines[0] else [f"the metrics when it stopped: {lines}"]
    report.case(f"within a validation, {ranks} ranks", problems, result)


def within_tasks(train, ranks, report):
    """The validation's loss is known, and what the tasks come to is not; the run that goes on makes up for both."""
    slow = ";".join(f"tasks@rank=0,hit={hit}:delay=1000" for hit in range(1, 21))

    def in_tasks(run):
        wait_for_path(run / "metrics.jsonl")
        time.sleep(4)

    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as task:
        task.writelines(json.dumps({"prompt": "the sun", "choices": [" rises", f" {i}"], "answer": 0}) + "\n" for i in range(30))
        task.flush()
        keys = {"run__validate_every": 1, "data__validation_fraction": 0.1, "run__evaluate": f'["{task.name}"]'}
        problems, result, lines = cut_short(train, ranks, keys, slow, in_tasks)
    problems += [] if len(lines) == 1 and not any(key == "val_loss" or key.startswith("task/") for key in lines[0]) else [f"the metrics when it stopped: {lines}"]
    report.case(f"within tasks, {ranks} ranks", problems, result)


def before_the_first_step(train, ranks, report):
    """What is asked before there is anything to save is a checkpoint of step 0, from which the run goes on."""
    problems, result, lines = cut_short(train, ranks, {}, "data.load@rank=0,hit=1:delay=1500", wait_for_path)
    report.case(f"before the first step's end, {ranks} ranks, after {len(lines)}", problems, result)


def in_time(train, report):
    """A run that knows when it has to end stops before that by itself."""
    for name, ranks, arguments, env, says in (
        ("train.time_limit in seconds", 3, {"train__time_limit": 8}, {}, "in time for train.time_limit (8 s)"),
        ("train.time_limit as a clock shows it", None, {"train__time_limit": "0:00:08"}, {}, "in time for train.time_limit (8 s)"),
        ("the end of the Slurm job", None, {}, {"SLURM_JOB_END_TIME": "in 8 s"}, "SLURM_JOB_END_TIME"),
        ("the end of the Slurm job before train.time_limit", 3, {"train__time_limit": "1:00:00"}, {"SLURM_JOB_END_TIME": "in 8 s"}, "SLURM_JOB_END_TIME"),
    ):
        with tempfile.TemporaryDirectory(prefix="stop.") as folder:
            if env:
                env = {"SLURM_JOB_END_TIME": str(int(time.time()) + 8)}
            command = harness.launch(ranks, [train, tiny_run.write_files(folder), *tiny_run.options(train__steps=1000000, **arguments)])
            result = harness.run(command, LIMIT_S, cwd=folder, env=env)
            text = (pathlib.Path(folder, "out") / "metrics.jsonl").read_text()
            problems = problems_of(result, text, harness.tree(folder), STOPPED)
            problems += [] if says in result.last_error_line() else [f"the last line does not say {says!r}: {result.last_error_line()}"]
            report.case(name, problems, result)


def nohup(train, report):
    """SIGHUP stays ignored where it was when the program started."""
    with tempfile.TemporaryDirectory(prefix="stop.") as folder:
        out = pathlib.Path(folder, "out")

        def on_start(process):
            wait_for_steps(out / "metrics.jsonl", 3)
            process.send_signal(signal.SIGHUP)

        command = [train, tiny_run.write_files(folder), *tiny_run.options(train__steps=200)]
        result = harness.run(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command], LIMIT_S, cwd=folder, on_start=on_start,
                             env={"UCX_DEBUG_SIGNO": "0"})  # Debian's MPICH loads UCX, which takes SIGHUP otherwise
        report.case("SIGHUP under nohup", [] if result.code == 0 else [f"exit code {result.code}"], result)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever started this test may have been started by nohup
    report = harness.Report()
    cases = [
        ("Ctrl-C, one rank", None, lambda p: p.send_signal(signal.SIGINT), STOPPED),
        ("SIGTERM, one rank", None, lambda p: p.send_signal(signal.SIGTERM), STOPPED),
        ("Ctrl-C at mpirun, 3 ranks", 3, lambda p: p.send_signal(signal.SIGINT), OF_LAUNCHER),
        ("SIGHUP, one rank", None, lambda p: p.send_signal(signal.SIGHUP), STOPPED),
        ("SIGUSR2, one rank", None, lambda p: p.send_signal(signal.SIGUSR2), STOPPED),
        ("SIGUSR2 to mpirun, 3 ranks", 3, lambda p: p.send_signal(signal.SIGUSR2), STOPPED),
        ("SIGTERM to mpirun, 3 ranks", 3, lambda p: p.send_signal(signal.SIGTERM), OF_LAUNCHER),
        ("SIGHUP to mpirun, 3 ranks", 3, lambda p: p.send_signal(signal.SIGHUP), OF_LAUNCHER),
        ("SIGUSR1 to mpirun, 3 ranks", 3, lambda p: p.send_signal(signal.SIGUSR1), STOPPED),
        ("SIGUSR1 to one rank of 3", 3, lambda p: os.kill(harness.ranks_of(p.pid)[1], signal.SIGUSR1), STOPPED),
        ("one rank of 3 is killed", 3, lambda p: os.kill(harness.ranks_of(p.pid)[1], signal.SIGKILL), KILLED),
    ]
    words = sys.argv[2:]
    for name, ranks, send, code in cases:
        if name in KILLS_LAUNCHER or (words and not any(word in name for word in words)):
            continue
        result, text, files = run_and_signal(train, ranks, send)
        problems = problems_of(result, text, files, code)
        problems += [] if ranks is None or HOW_TO_STOP in result.out else ["the start does not say how to stop with time to save"]
        report.case(name, problems, result)
    if not words or "slurm_script" in words:
        slurm_script_case(train, report)
    for case, places in ((within_a_step, (1, 3)), (within_an_accumulation, (3,)), (within_a_validation, (1, 3)), (within_tasks, (2,)), (before_the_first_step, (3,)), (in_time, ()), (nohup, ())):
        if words and not any(word in case.__name__ for word in words):
            continue
        for ranks in places:
            case(train, ranks, report)
        if not places:
            case(train, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
