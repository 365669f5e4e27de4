#!/usr/bin/env python3
"""How much of a step's communication hides between hosts: bench_overlap over hosts made of network namespaces with limited links
(tests/multihost/hosts.py; needs root), and what really crossed the links, read off their own counters. Prints a Markdown table, or with --json
a line for each row: bench_overlap's own (docs/benchmarks.md), and hosts, ranks_each, rate, congestion_control, link_mib_a_step, link_use.
Usage: multihost.py [--build build] [--hosts 2,4] [--ranks-each 1] [--rates 1gbit,200mbit] [--prefetch 0,1] [--warmup 2] [--steps 5]
       [--profile-steps 2] [--counted-steps 2] [--json] [-- OPTIONS OF bench_overlap]"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "multihost"))

from hosts import DEFAULT_CONTROL, Hosts, Unavailable  # noqa: E402

FEW_STEPS = 1  # of the shorter of the two runs whose bytes are compared
COUNTING_RATE = "10gbit"  # what crosses a link does not depend on its rate, so it is counted over quick ones
HEADER = """| hosts x ranks | link | transport | prefetch | compute alone, ms | communication alone, ms | step, ms | critical path, ms | step / path | overlap efficiency | MiB a step and link | of the link |
|---|---|---|---|---|---|---|---|---|---|---|---|"""


def run_json(hosts, ranks_each, command):
    env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    words = hosts.mpirun(ranks_each, command, "--oversubscribe", "--bind-to", "none")
    done = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"multihost: {' '.join(map(str, command))} ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


@functools.cache
def bytes_a_step(count, ranks_each, program, options, counted_steps):
    """What the busiest link carries: two runs differ in their steps alone, so that starting and ending cancel out."""
    sent = []
    with Hosts(count, rate=COUNTING_RATE, divides_cpus=True) as hosts:
        for steps in (FEW_STEPS, FEW_STEPS + counted_steps):
            before = [hosts.sent_bytes(name) for name in hosts.names]
            run_json(hosts, ranks_each, [program, *options, "--warmup", 0, "--steps", steps, "--profile-steps", 1, "--json"])
            sent.append(max(hosts.sent_bytes(name) - b for name, b in zip(hosts.names, before)))
    return (sent[1] - sent[0]) / counted_steps


def bits_per_s(rate):
    for unit, factor in (("gbit", 1e9), ("mbit", 1e6)):
        if rate.endswith(unit):
            return float(rate[:-len(unit)]) * factor
    sys.exit(f"multihost: {rate} is not a rate: write 1gbit or 200mbit")


@functools.cache
def note_control(control):
    print(f"multihost: note: TCP is under {control}, for this machine does not allow {DEFAULT_CONTROL} (sysctl net.ipv4.tcp_allowed_congestion_control); "
          "which may lengthen steps (bench/results/2026-11-26-cpu-notes.md)", file=sys.stderr)


def row(count, rate, prefetch, arguments):
    build = pathlib.Path(arguments.build).resolve()
    command = [build / "bench_overlap", *arguments.options, "--set", f"shard.prefetch={prefetch}", "--warmup", arguments.warmup, "--steps",
               arguments.steps, "--profile-steps", arguments.profile_steps or min(arguments.steps, 2), "--json"]
    with Hosts(count, rate=rate, divides_cpus=True) as hosts:
        control = hosts.congestion_control()
        overlap = run_json(hosts, arguments.ranks_each, command)
    if control != DEFAULT_CONTROL:
        note_control(control)
    carried = bytes_a_step(count, arguments.ranks_each, build / "bench_step", tuple(arguments.options), arguments.counted_steps)
    return {"hosts": count, "ranks_each": arguments.ranks_each, "rate": rate, "congestion_control": control, "link_mib_a_step": carried / 2**20,
            "link_use": carried * 8 / bits_per_s(rate) / (overlap["step_ms"] / 1e3), **overlap}


def as_markdown(r):
    efficiency = "-" if r["overlap_efficiency"] is None else f"{100 * r['overlap_efficiency']:.0f} %"
    return (f"| {r['hosts']} x {r['ranks_each']} | {r['rate']} | {r['transport']} | {r['prefetch']} | {r['compute_ms']:.1f} | {r['communication_ms']:.1f} "
            f"| {r['step_ms']:.1f} | {r['planned_step_ms']:.1f} | {r['step_ms'] / r['planned_step_ms']:.2f} | {efficiency} "
            f"| {r['link_mib_a_step']:.2f} | {100 * r['link_use']:.0f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--hosts", default="2,4", help="how many, by commas")
    parser.add_argument("--ranks-each", type=int, default=1)
    parser.add_argument("--rates", default="1gbit,200mbit", help="of each host's link, as tc writes them, by commas")
    parser.add_argument("--prefetch", default="0,1", help="units fetched ahead, by commas")
    parser.add_argument("--warmup", type=int, default=2, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=5, help="timed ones")
    parser.add_argument("--profile-steps", type=int, default=0, help="of which ops are timed; by itself two, or one where one step is timed")
    parser.add_argument("--counted-steps", type=int, default=2, help="over which bytes are counted: how a run starts and ends differs by some hundred KiB")
    parser.add_argument("--json", action="store_true", help="a line for each row in place of the table")
    parser.add_argument("options", nargs="*", help="of bench_overlap, after --; not --steps, --warmup and --profile-steps")
    arguments = parser.parse_args()
    for rate in arguments.rates.split(","):
        bits_per_s(rate)
    if not arguments.json:
        print(HEADER)
    try:
        for count in map(int, arguments.hosts.split(",")):
            for rate in arguments.rates.split(","):
                for prefetch in map(int, arguments.prefetch.split(",")):
                    result = row(count, rate, prefetch, arguments)
                    print(json.dumps(result) if arguments.json else as_markdown(result), flush=True)
    except Unavailable as reason:
        sys.exit(f"multihost: {reason}")


if __name__ == "__main__":
    main()
