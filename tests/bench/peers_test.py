#!/usr/bin/env python3
"""The comparison with PyTorch alternates, computes medians and ratios, and says in one line what is missing. Stand-ins take the places
of bench_step and of PyTorch; where $ZSHARD_PEER_PYTHON has PyTorch the real ones run as well.
Usage: peers_test.py BENCH_STEP"""

import json
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "train" / "program"))
import harness

PEERS = harness.ROOT / "bench" / "peers"
STAND_IN = """#!{python}
import json, os, pathlib, sys, time
name, rates = {name!r}, {rates!r}
calls = pathlib.Path({calls!r})
if "--check" in sys.argv:
    sys.exit(0)
with calls.open("a") as f:
    f.write(name + " " + " ".join(sys.argv[1:]) + chr(10))
rate = rates[sum(line.startswith(name) for line in calls.read_text().splitlines()) - 1]
if isinstance(rate, str):
    print("first line" + chr(10) + rate + chr(10) + "----", file=sys.stderr)
    sys.exit(3)
if rate < 0:
    time.sleep(600)
child = os.fork()  # ours: a rank's helper; the peer's: a launcher's rank
is_rank = (child == 0) == (name == "peer")
memory = bytearray(({megabytes} if is_rank else 512 if name == "peer" else 1) << 20)
time.sleep(0.5 if child == 0 else 0)
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
time.sleep(0.5)
print(json.dumps(dict(tokens_per_s=rate, step_ms=1000 / rate, pss_bytes=None if name == "ours" else 4096, version="9.9")))
"""


class StandIns:
    def __init__(self, folder, ours, peer):
        self.folder, self.calls = pathlib.Path(folder), pathlib.Path(folder) / "calls"
        for name, rates, megabytes in (("ours", ours, 64), ("peer", peer, 128)):
            path = self.folder / name
            path.write_text(STAND_IN.format(python=sys.executable, name=name, rates=rates, calls=str(self.calls), megabytes=megabytes))
            path.chmod(0o755)

    def compare(self, *flags, on_start=None):
        command = [sys.executable, PEERS / "compare.py", "--bench-step", self.folder / "ours", "--python", self.folder / "peer", *flags]
        return harness.run(command, timeout_s=120, on_start=on_start)


def stop_when_called(process, stand_ins):
    deadline = time.monotonic() + 60
    while not stand_ins.calls.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.terminate()


def one_line_problems(result, code, words):
    lines = result.err.splitlines()
    good = result.code == code and not result.orphans and len(lines) == 1 and all(word in lines[0] for word in words)
    return [] if good else [f"exit {code} and one line with {words} expected"]


def alternation_problems(result, stand_ins):
    if result.code != 0 or result.err:
        return ["exit 0 expected"]
    report, calls = json.loads(result.out), stand_ins.calls.read_text().splitlines()
    flags = "--preset tiny --dtype bf16 --micro-batch 3 --micro-batches 2 --sequence 32 --steps 4 --warmup 1 --json"
    mib = 1 << 20
    facts = {
        "who begins changes": [call.split()[0] for call in calls] == ["ours", "peer", "peer", "ours", "ours", "peer"],
        "bench_step gets the flags and the settings": calls[0] == f"ours {flags} --set shard.prefetch=2 --set run.seed=1",
        "the peer gets them too": calls[1].endswith(f"fsdp2_step.py {flags} --ranks 1 --threads 1"),
        "rates are medians": report["tokens_per_s"] == {"zshard": 20, "FSDP2": 10, "ratio": 2, "zshard_min": 10, "zshard_max": 40, "FSDP2_min": 5, "FSDP2_max": 50},
        "what is not known has no ratio": report["pss_bytes"] == {"zshard": None, "FSDP2": 4096, "ratio": None},
        "resident memory is each one's own": 64 * mib < report["peak_rss_bytes"]["zshard"] < 128 * mib < report["peak_rss_bytes"]["FSDP2"] < 256 * mib,
    }
    return [f"not so: {fact}" for fact, holds in facts.items() if not holds]


def stand_in_cases(report, folder):
    def new(name, ours, peer):
        (pathlib.Path(folder) / name).mkdir()
        return StandIns(pathlib.Path(folder) / name, ours, peer)

    small = ["--preset", "tiny", "--dtype", "bf16", "--micro-batch", "3", "--micro-batches", "2", "--sequence", "32", "--steps", "4", "--warmup", "1"]
    stand_ins = new("good", [10, 40, 20], [50, 10, 5])
    result = stand_ins.compare(*small, "--threads", "1", "--rounds", "3", "--json", "--set", "shard.prefetch=2", "--set", "run.seed=1")
    report.case("three alternated rounds", alternation_problems(result, stand_ins), result)

    result = new("table", [30], [20]).compare("--rounds", "1")
    words = ["tokens/s", "30.0", "20.0", "1.50", "unknown", "PyTorch 9.9"]
    report.case("the table", [f"'{word}' is missing" for word in words if word not in result.out] + (["exit 0 expected"] if result.code else []), result)

    result = new("ours_fails", ["bench_step: error: it broke"], [20]).compare("--rounds", "1")
    report.case("bench_step fails", one_line_problems(result, 1, ["zshard failed", "exit code 3", "first line"]), result)
    result = new("peer_fails", [30], ["RuntimeError: it broke"]).compare("--rounds", "1", "--json")
    report.case("PyTorch fails", one_line_problems(result, 1, ["FSDP2 failed", "exit code 3", "RuntimeError: it broke"]), result)
    result = new("hangs", [-1], [20]).compare("--rounds", "1", "--timeout", "2")
    report.case("a run that does not end", one_line_problems(result, 1, ["zshard ran for more than 2 s"]), result)
    folder_of_stopped = new("stopped", [-1], [20])
    result = folder_of_stopped.compare("--rounds", "1", on_start=lambda process: stop_when_called(process, folder_of_stopped))
    report.case("stopped while a run is on", ["exit 143 and nothing left running expected"] if result.code != 143 or result.orphans else [], result)
    result = new("missing", [30], [20]).compare("--bench-step", "no/such/program")
    report.case("bench_step is not built", one_line_problems(result, 1, ["no/such/program"]), result)


def without_torch_cases(report, folder):
    (pathlib.Path(folder) / "torch.py").write_text("raise ImportError('hidden by the test')\n")
    env = {"PYTHONPATH": str(folder)}
    words = ["skipped", "hidden by the test", "bench/peers/README.md"]
    result = harness.run([sys.executable, PEERS / "fsdp2_step.py", "--ranks", "2"], env=env)
    report.case("the step without PyTorch", one_line_problems(result, harness.SKIP, words), result)
    result = harness.run([sys.executable, PEERS / "compare.py", "--bench-step", "/bin/false", "--python", sys.executable], env=env)
    report.case("the comparison without PyTorch", one_line_problems(result, harness.SKIP, words), result)


def real_case(report, program):
    python = os.environ.get("ZSHARD_PEER_PYTHON")
    if not python or harness.run([python, PEERS / "fsdp2_step.py", "--check"], timeout_s=120).code != 0:
        print("no PyTorch in $ZSHARD_PEER_PYTHON: the real comparison is left out")
        return
    for flags in (["--dtype", "f32", "--ranks", "2"], ["--dtype", "bf16", "--ranks", "2", "--micro-batches", "2"], ["--dtype", "bf16"]):
        command = [sys.executable, PEERS / "compare.py", "--bench-step", program, "--python", python, "--preset", "tiny", "--sequence", "32",
                   "--micro-batch", "1", "--steps", "1", "--warmup", "1", "--rounds", "1", "--threads", "1", "--json", *flags]
        result = harness.run(command, timeout_s=200)
        problems = ["exit 0 expected"] if result.code else []
        if not problems:
            problems = [f"no {field} of {name}" for field in ("tokens_per_s", "step_ms", "pss_bytes", "peak_rss_bytes")
                        for name in ("zshard", "FSDP2") if not (json.loads(result.out)[field][name] or 0) > 0]
        report.case(f"PyTorch itself, {' '.join(flags)}", problems, result)


def main():
    report = harness.Report()
    harness.become_subreaper()
    with tempfile.TemporaryDirectory(prefix="zshard-test-") as folder:
        stand_in_cases(report, folder)
        without_torch_cases(report, folder)
    real_case(report, sys.argv[1])
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
