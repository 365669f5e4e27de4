#!/usr/bin/env python3
"""tests/gpu/run goes on where it stopped, counts what it did, and ends in time; with made-up tests instead of a GPU's."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
RUN = str(pathlib.Path(__file__).with_name("run"))


def loaded():
    spec = importlib.util.spec_from_loader("gpu_run", importlib.machinery.SourceFileLoader("gpu_run", RUN))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = loaded()


def expect(condition, what):
    if not condition:
        sys.exit(f"run_test: {what}")


class Made:
    """A folder with programs for tests, and runs over it."""

    def __init__(self, folder):
        self.folder, self.tests = pathlib.Path(folder), []
        run.ROOT = self.folder

    def add(self, name, script, timeout=20):
        path = self.folder / f"{name}.sh"
        path.write_text(f"echo x >> {self.folder}/{name}.calls\n{script}\n")
        self.tests.append({"name": name, "cmd": ["sh", str(path)], "env": {"SAID": "1"}, "workdir": None, "timeout": timeout})

    def calls(self, name):
        path = self.folder / f"{name}.calls"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def run(self, part="kernels", limit_s=100.0, again=False):
        """({test: outcome}, exit code, last line)"""
        arguments = argparse.Namespace(part=part, build="build", bundle="none", again=again, limit_s=limit_s)
        (self.folder / "build").mkdir(exist_ok=True)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                rows = run.Run(arguments).run_all(self.tests)
                run.report(part, rows)
            except SystemExit as ended:
                self.said = said.getvalue()
                return {name: outcome for name, outcome, _ in rows}, ended.code, self.said.splitlines()[-1]
        sys.exit("run_test: the report did not end")


def what_has_passed_is_not_run_again(made):
    made.add("good", 'test "$SAID" = 1')
    made.add("bad", "echo the reason; exit 3")
    made.add("absent", "echo looked; echo skipped: no such thing here; exit 77")
    outcomes, code, last = made.run()
    expect(outcomes == {"good": "passed", "bad": "FAILED (3)", "absent": "skipped"}, f"wrong outcomes: {outcomes}")
    expect(code == 1 and last == "kernels: 1 passed, 1 failed, 1 skipped, 0 left for another call", f"wrong end: {code}, {last}")
    expect("--- absent: skipped: no such thing here" in made.said.splitlines(), f"no reason for what is skipped: {made.said}")
    outcomes, code, _ = made.run()
    expect(outcomes["good"] == "passed before" and made.calls("good") == 1, "what has passed was run again")
    expect(code == 1 and made.calls("bad") == 2, "what had failed was not run again")
    made.run(again=True)
    expect(made.calls("good") == 2, "--again did not run what had passed")


def a_changed_program_is_run_again(made):
    made.add("changes", "exit 0")
    made.run()
    made.tests.clear()
    made.add("changes", "exit 5")
    outcomes, code, _ = made.run()
    expect(code == 1 and outcomes == {"changes": "FAILED (5)"}, "a changed program kept its old result")


def what_does_not_fit_is_left_for_another_call(made):
    made.add("slow", "exec sleep 20", timeout=30)
    made.add("later", "exit 0")
    outcomes, code, last = made.run(limit_s=1.0)
    expect(outcomes == {"slow": "not run", "later": "not run"} and code == 75, f"wrong outcomes: {outcomes}, {code}")
    expect(made.calls("slow") == 0, "a test was begun without time for it")
    expect(last == "kernels: 0 passed, 0 failed, 0 skipped, 2 left for another call", last)


def a_test_that_hangs_fails_when_it_had_its_time(made):
    made.add("hangs", "exec sleep 20", timeout=1)
    outcomes, code, _ = made.run()
    expect(outcomes == {"hangs": "FAILED (timeout)"} and code == 1, f"wrong outcomes: {outcomes}")


def without_a_gpu_it_is_one_line(_made):
    run.driver.ctypes.CDLL = lambda name: (_ for _ in ()).throw(OSError(f"{name}: not there"))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            run.gpu_architecture()
            code = None
        except SystemExit as ended:
            code = ended.code
    expect(code == 77 and said.getvalue() == "tests/gpu/run: no GPU here: no NVIDIA driver (libcuda.so.1: not there)\n", said.getvalue())


def a_catch_program_is_taken_case_by_case(made):
    path = made.folder / "catch.sh"
    path.write_text('printf "one, two\\nthree [x]\\n"; exit 2\n')
    test = {"name": "all", "cmd": ["sh", str(path)], "env": {}, "workdir": None, "timeout": 1}
    arguments = argparse.Namespace(part="sanitizer", build="build", bundle="none", again=False, limit_s=10)
    cases = run.Run(arguments).cases(test)
    expect([c["name"] for c in cases] == ["all: one, two", "all: three [x]"], json.dumps(cases))
    expect([c["cmd"][-1] for c in cases] == ["one\\, two", "three \\[x\\]"], json.dumps(cases))


def log_of(program, **report):
    return "a line before\n{broken\n" + json.dumps({"program": program, **report}) + "\n"


def figures_are_read_off_the_logs(made):
    lines_of = run.bench_rows.lines_of
    row = {"kernel": "add", "shape": "8", "dtype": "bf16", "bound": "memory", "gb_per_s": 1999.6, "gflops": 0, "percent": 66.66, "ms_min": 0.5}
    rows = [row, row | {"kernel": "matmul", "bound": "products", "gflops": 345600, "percent": 50}, row | {"kernel": "clip", "bound": "latency"}]
    ceilings = [{"copy_gb_per_s": 3000.4, "product_gflops": {"bf16": 691200}}]
    lines = lines_of(log_of("bench_kernels", gpu="A GPU", isa="sm_90", last_level_cache_bytes=50 << 20, ceilings=ceilings, kernels=rows))
    expect(lines[0] == "A GPU (sm_90), L2 50 MiB: copy 3000 GB/s, bf16 products 691.2 TFLOP/s", lines[0])
    expect([line.split() for line in lines[1:]] == [["add", "8", "bf16", "2000", "GB/s", "66.7", "%"],
                                                    ["matmul", "8", "bf16", "345.6", "TFLOP/s", "50.0", "%"],
                                                    ["clip", "8", "bf16", "500.0", "us", "a", "launch"]], f"wrong rows: {lines}")
    step = {"preset": "124M", "dtype": "bf16", "micro_batch": 16, "sequence": 1024, "tokens_per_s": 1e5, "step_ms": 163.84,
            "pct_of_product_ceiling": 41.5, "product_ceiling_gflops": 691200}
    lines = lines_of(log_of("bench_step", **step, profile=None) + log_of("bench_step", **step, profile={"idle_ms": 1, "step_ms": 8}))
    expect(lines == ["124M bf16, 16 x 1024 tokens: 100000 tokens/s, 163.84 ms, 41.5 % of 691.2 TFLOP/s" + idle for idle in ("", ", idle 12.5 %")], f"wrong lines: {lines}")
    both = {"zshard": 30, "PyTorch": 20, "ratio": 1.5}
    lines = lines_of(log_of("compare_gpu", steps=[{"what": "124M", "tokens_per_s": both}], kernels=[{"what": "copy 7", "ms": both}]))
    expect([" ".join(line.split()) for line in lines] == ["124M zshard 30, PyTorch 20 tokens/s, 1.50 times as fast", "copy 7 zshard 30, PyTorch 20 ms, 1.50 times as fast"], f"wrong lines: {lines}")
    lines = lines_of(log_of("bench_step", **step, profile=None, ranks=4, ranks_a_gpu=2, transport="staged"))
    expect(lines[0].startswith("124M bf16, 4 ranks over staged, up to 2 on a GPU, 16 x 1024 tokens: "), f"wrong lines: {lines}")
    expect(lines_of("no report\n") == [], "figures without a report")


def figures_of_several_gpus_are_read_off_the_logs(_made):
    lines_of = run.bench_rows.lines_of
    overlap = {"device": "cuda", "preset": "124M", "dtype": "bf16", "ranks": 4, "transport": "nccl", "step_ms": 163.84, "compute_ms": 150, "communication_ms": 40.5,
               "overlap_efficiency": 0.754, "note": None}
    expect(lines_of(log_of("bench_overlap", **overlap)) ==
           ["124M bf16, 4 ranks over nccl: a step 163.84 ms, compute 150.00, communication 40.50; 75 % of what can hide hides"], "wrong overlap")
    lines = lines_of(log_of("bench_overlap", **overlap | {"note": "one rank", "overlap_efficiency": None}))
    expect(lines[0].endswith("next to nothing can hide; not meaningful: one rank"), f"wrong overlap: {lines}")
    row = {"op": "all_gather", "bytes": 1 << 28, "dtype": "bf16", "transport": "nccl", "busbw_gbs": 321.06, "algbw_gbs": 400, "time_us": 671.1, "pct_of_copy_ceiling": 12.3}
    lines = lines_of(log_of("bench_collectives", device="cuda", gpu="A GPU", ranks=4, ranks_a_gpu=1, copy_gb_per_s=12000, collectives=[row | {"bytes": 4096, "busbw_gbs": 1}, row]))
    expect([line.split() for line in lines] == ["4 ranks, up to 1 on one A GPU: copy by all 12000 GB/s".split(),
                                                "all_gather bf16 nccl 268435456 bytes 671.1 us busbw 321.1 GB/s 12.3 %".split()], f"wrong collectives: {lines}")


def benchmarks_of_several_ranks_fit_the_gpus(_made):
    import bench_ranks

    one = bench_ranks.commands(["/b/bench_collectives", "--op", "broadcast"], 1)
    expect(len(one) == 1 and one[0][one[0].index("/b/bench_collectives"):] == ["/b/bench_collectives", "--op", "broadcast", "--device", "cuda", "--json", "--transport", "staged", "--share-gpu"], f"{one}")
    expect(bench_ranks.commands(["bench_step"], 1)[0][-2:] == ["--set", "cuda.share_gpu=true"], "two ranks on one GPU must say so")
    for gpus, ranks in ((2, "2"), (16, "8")):
        several = bench_ranks.commands(["bench_step"], gpus)
        expect([command[-1] for command in several] == ["nccl", "staged"], f"{several}")
        expect(all(command[command.index("-np") + 1] == ranks and "cuda.share_gpu=true" not in command for command in several), f"{several}")


def the_part_bench_shows_the_figures_of_every_call(made):
    made.add("step", "echo '" + log_of("compare_gpu", steps=[{"what": "tiny", "tokens_per_s": {"zshard": 3, "PyTorch": 2, "ratio": 1.5}}], kernels=[]).splitlines()[-1] + "'")
    made.add("silent", "echo no report")
    arguments = argparse.Namespace(part="bench", build="build", bundle="none", again=False, limit_s=100)
    for call in ("passed", "passed before"):
        (made.folder / "build").mkdir(exist_ok=True)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            one = run.Run(arguments)
            rows = one.run_all(made.tests)
            one.show_figures(made.tests)
        lines = said.getvalue().splitlines()
        expect([outcome for _, outcome, _ in rows] == [call] * 2 and len(lines) == 1 and "zshard 3, PyTorch 2 tokens/s" in lines[0], f"{rows}: {lines}")


def main():
    for case in (what_has_passed_is_not_run_again, a_changed_program_is_run_again, what_does_not_fit_is_left_for_another_call,
                 a_test_that_hangs_fails_when_it_had_its_time, a_catch_program_is_taken_case_by_case, figures_are_read_off_the_logs,
                 figures_of_several_gpus_are_read_off_the_logs, benchmarks_of_several_ranks_fit_the_gpus,
                 the_part_bench_shows_the_figures_of_every_call, without_a_gpu_it_is_one_line):
        with tempfile.TemporaryDirectory() as folder:
            case(Made(folder))


if __name__ == "__main__":
    main()
