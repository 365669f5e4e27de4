#!/usr/bin/env python3
"""Alternates bench_step with the same step in PyTorch (fsdp2_step.py) and prints the medians of both and their ratio.
See README.md beside this file."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading

SKIP = 77
HERE = pathlib.Path(__file__).resolve().parent
OURS, PEER = "zshard", "FSDP2"


class Failure(Exception):
    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def parse(arguments):
    parser = argparse.ArgumentParser(prog="compare", description="Alternates bench_step with the same step in PyTorch.")
    parser.add_argument("--rounds", type=positive, default=5, help="how often each of the two runs")
    parser.add_argument("--preset", default="124M")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--micro-batch", type=positive, default=4)
    parser.add_argument("--micro-batches", type=positive, default=1)
    parser.add_argument("--sequence", type=positive, default=256)
    parser.add_argument("--steps", type=positive, default=5, help="timed steps of each run")
    parser.add_argument("--warmup", type=positive, default=2, help="steps before them")
    parser.add_argument("--ranks", type=positive, default=1)
    parser.add_argument("--threads", type=positive, help="a rank; default: the CPUs divided by the ranks")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of zshard's configuration; repeatable")
    parser.add_argument("--bench-step", default="build/bench_step")
    parser.add_argument("--python", default=os.environ.get("ZSHARD_PEER_PYTHON", sys.executable),
                        help="of the environment with PyTorch; default: $ZSHARD_PEER_PYTHON, else the one that runs this")
    parser.add_argument("--timeout", type=positive, default=1800, help="seconds that one run may take")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of tables")
    options = parser.parse_args(arguments)
    options.threads = options.threads or max(1, len(os.sched_getaffinity(0)) // options.ranks)
    return options


def commands(options):
    flags = [("--preset", options.preset), ("--dtype", options.dtype), ("--micro-batch", options.micro_batch),
             ("--micro-batches", options.micro_batches), ("--sequence", options.sequence), ("--steps", options.steps),
             ("--warmup", options.warmup)]
    step = [str(word) for flag in flags for word in flag] + ["--json"]
    mpirun = ["mpirun", "-q", "--oversubscribe", "-np", str(options.ranks)] if options.ranks > 1 else []
    return {
        OURS: [*mpirun, options.bench_step, *step, *(word for setting in options.set for word in ("--set", setting))],
        PEER: [options.python, str(HERE / "fsdp2_step.py"), *step, "--ranks", str(options.ranks), "--threads", str(options.threads)],
    }


def session_processes(session):
    """Of a session: process -> its parent."""
    processes = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                processes[int(entry)] = int(fields[1])
    return processes


class PeakMemory(threading.Thread):
    """The largest resident set of every rank of one run, as the kernel keeps it: looked up a few times a second, which costs the ranks
    nothing. `name` is whose run it is: a rank of zshard may have a child, which runs the same program, and what launches it runs
    another one; in PyTorch's run a rank is a process that never has a child."""

    def __init__(self, session, name):
        super().__init__(daemon=True)
        self.session, self.name, self.is_over = session, name, threading.Event()
        self.peaks, self.parents, self.programs = {}, {}, {}

    def run(self):
        while not self.is_over.wait(0.2):
            for process, parent in session_processes(self.session).items():
                self.parents[process] = parent
                self.look(process)

    def look(self, process):
        try:
            self.programs[process] = os.readlink(f"/proc/{process}/exe")
            lines = pathlib.Path("/proc", str(process), "status").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            if line.startswith("VmHWM:"):
                self.peaks[process] = int(line.split()[1]) * 1024

    def is_rank(self, process):
        children = [child for child, parent in self.parents.items() if parent == process]
        if self.name == PEER:
            return not children
        program = self.programs[process]
        return self.programs.get(self.parents[process]) != program and all(self.programs.get(child, program) == program for child in children)

    def end(self):
        self.is_over.set()
        self.join()
        return sum(peak for process, peak in self.peaks.items() if self.is_rank(process))


def reason_of(name, lines):
    """The line that says why: bench_step's own comes before what mpirun adds, Python's after the traceback."""
    lines = [line for line in lines if any(c.isalpha() for c in line)]
    return lines[0 if name == OURS else -1] if lines else "it printed no report"


def run(name, command, options):
    """The report of one run, with `peak_rss_bytes` of all its ranks."""
    env = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    cpus = sorted(os.sched_getaffinity(0))[: options.ranks * options.threads]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True,
                                       preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        except OSError as error:
            raise Failure(f"{name} cannot be started: {error}") from error
        memory = PeakMemory(process.pid, name)
        memory.start()
        try:
            code = process.wait(options.timeout)
        except subprocess.TimeoutExpired as error:
            raise Failure(f"{name} ran for more than {options.timeout} s: {' '.join(command)}") from error
        finally:
            for left in session_processes(process.pid):
                os.kill(left, signal.SIGKILL)
            process.wait()
            peak_bytes = memory.end()
        out.seek(0)
        err.seek(0)
        lines, errors = out.read().splitlines(), err.read().splitlines()
    try:
        return {**json.loads(lines[-1]), "peak_rss_bytes": peak_bytes}
    except (IndexError, ValueError) as error:
        raise Failure(f"{name} failed with exit code {code}: {reason_of(name, errors)}") from error


def check(options):
    """Before anything is timed: both programs are there, and PyTorch."""
    for program in (options.bench_step, options.python):
        if shutil.which(program) is None:
            raise Failure(f"there is no program {program}")
    done = subprocess.run([options.python, str(HERE / "fsdp2_step.py"), "--check"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=options.timeout)
    if done.returncode != 0:
        raise Failure((done.stderr.splitlines() or [f"{PEER} cannot run here"])[-1], done.returncode)


def compare(options):
    """Reports by name; who begins changes from round to round."""
    reports = {OURS: [], PEER: []}
    for index in range(options.rounds):
        names = [OURS, PEER] if index % 2 == 0 else [PEER, OURS]
        for name in names:
            reports[name].append(run(name, commands(options)[name], options))
        if not options.json:
            rates = "".join(f"  {name} {reports[name][-1]['tokens_per_s']:9.1f}" for name in (OURS, PEER))
            print(f"round {index + 1:2}{rates} tokens/s", flush=True)
    return reports


def median(reports, field):
    values = [report[field] for report in reports if report.get(field) is not None]
    return statistics.median(values) if values else None


def ratio(ours, peer):
    return None if ours is None or not peer else ours / peer


def summary(options, reports):
    result = {"program": "compare", "rounds": options.rounds, "preset": options.preset, "dtype": options.dtype, "ranks": options.ranks,
              "threads": options.threads, "micro_batch": options.micro_batch, "micro_batches": options.micro_batches,
              "sequence": options.sequence, "peer_version": reports[PEER][0].get("version")}
    for field in ("tokens_per_s", "step_ms", "pss_bytes", "peak_rss_bytes"):
        ours, peer = (median(reports[name], field) for name in (OURS, PEER))
        result[field] = {OURS: ours, PEER: peer, "ratio": ratio(ours, peer)}
    for name in (OURS, PEER):
        rates = [report["tokens_per_s"] for report in reports[name]]
        result["tokens_per_s"][f"{name}_min"], result["tokens_per_s"][f"{name}_max"] = min(rates), max(rates)
    return result


def text_of(result):
    lines = [f"{result['preset']} {result['dtype']}, {result['ranks']} ranks x {result['threads']} threads, {result['micro_batches']} x "
             f"{result['micro_batch']} x {result['sequence']} tokens a rank and step; medians of {result['rounds']} alternated runs; "
             f"PyTorch {result['peer_version']}",
             f"{'':<24}{OURS:>12}{PEER:>12}{'ratio':>9}"]
    rows = [("tokens/s", "tokens_per_s", 1, 1), ("ms a step", "step_ms", 1, 1), ("PSS after it, MiB", "pss_bytes", 2**20, 0),
            ("peak RSS, MiB", "peak_rss_bytes", 2**20, 0)]
    for label, field, unit, digits in rows:
        values = [result[field][name] for name in (OURS, PEER)]
        cells = "".join(f"{'unknown' if value is None else f'{value / unit:.{digits}f}':>12}" for value in values)
        both = result[field]["ratio"]
        lines.append(f"{label:<24}{cells}{'' if both is None else f'{both:.2f}':>9}")
    return "\n".join(lines)


def end_on_signal(number, _frame):
    sys.exit(128 + number)  # by way of every `finally`, which end what was started


def main(arguments):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, end_on_signal)
    signal.signal(signal.SIGINT, end_on_signal)
    try:
        check(options)
        result = summary(options, compare(options))
    except Failure as failure:
        print(f"compare: {failure}", file=sys.stderr)
        return failure.code
    print(json.dumps(result) if options.json else text_of(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
