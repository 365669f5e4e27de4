#!/usr/bin/env python3
"""`train` by two ranks that share this machine's GPU has the CPU's losses: staged through the host, or over NCCL, for which each rank must
look like a host of its own. Exit 77, with the reason in the last line, where there is no NCCL. `graph`: by one rank, steps that are replayed as
CUDA graphs have the very losses of steps that are not; `graph-nccl`: by two, over NCCL. With `cpu` in the place of the GPU it tries nothing but itself.
Usage: train_test.py TRAIN CONFIG BUILD_DIR staged|nccl|graph|graph-nccl [cpu]"""

import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "train" / "program"))

import harness  # noqa: E402
import tiny_run  # noqa: E402

STEPS, SKIPPED = 8, 77
TOLERANCE = 1e-3  # of f32 sums in other orders, after some steps of the warm-up
NCCL_ON_ONE_GPU = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}


def command(train, config, out, corpus, device, transport, ranks=2, has_graph=False):
    sets = tiny_run.options(train__steps=STEPS, train__warmup=STEPS, run__dir=out, run__validate_every=STEPS, run__validate_batches=1,
                            run__sample_tokens=8, data__train=corpus, device=device, comm__timeout_s=60)
    if device == "cuda":
        sets += tiny_run.options(cuda__share_gpu="true", cuda__transport=transport)
    if has_graph and device == "cuda":
        sets += tiny_run.options(cuda__graph="true")
    rank = [str(word) for word in (train, config, *sets)]
    return harness.mpirun(1, rank) if ranks == 1 else two_ranks(transport, rank)


def two_ranks(transport, rank):
    if transport != "nccl":
        return harness.mpirun(2, rank)
    first = harness.mpirun(1, ["-x", "NCCL_HOSTID=zshard-test-0", *rank])
    return [*first, ":", "-np", "1", "-x", "NCCL_HOSTID=zshard-test-1", *map(str, rank)]


def losses(out):
    metrics = harness.read_metrics(out)
    return [m["loss"] for m in metrics] + [m["val_loss"] for m in metrics if m.get("val_loss") is not None]


def check(result, out, transport, expected):
    if result.code != 0:
        return [f"exit code {result.code}"]
    problems = [] if f"transport {transport}" in result.out.splitlines()[0] else [f"the first line does not say {transport}"]
    found = losses(out)
    if len(found) != len(expected) or not all(abs(a - b) <= TOLERANCE * b for a, b in zip(found, expected)):
        problems.append(f"losses {found}, of the CPU {expected}")
    return problems + ([f"{len(result.orphans)} processes were left running"] if result.orphans else [])


def check_graph(result, out, device, expected):
    if result.code != 0:
        return [f"exit code {result.code}"]
    has_begun = "train: note: step 2: captured as a CUDA graph" in result.err
    problems = [] if has_begun == (device == "cuda") else ["nothing says that step 2 is captured"]
    return problems + ([] if losses(out) == expected else [f"losses {losses(out)}, without a graph {expected}"])


def own_problems(config, build_dir):
    """This program, of a `train` that has no NCCL."""
    with tempfile.TemporaryDirectory(prefix="gpu_train.") as folder:
        train = pathlib.Path(folder, "train")
        train.write_text("#!/bin/sh\necho 'train: error: no NCCL here (libnccl.so.2: no such file): put it there' >&2\nexit 78\n")
        train.chmod(0o755)
        result = harness.run([sys.executable, __file__, train, config, build_dir, "nccl"], 120)
    good = result.code == SKIPPED and result.out.splitlines()[-1:] == ["skipped: train: error: no NCCL here (libnccl.so.2: no such file): put it there"]
    return result, [] if good else [f"exit 77 and the reason expected, got {result.code}"]


def try_ranks(run, report, device, transport):
    out, result = run(transport, device, transport)
    if device == "cuda" and "no NCCL here" in result.err:
        print(f"skipped: {result.last_error_line()}")
        return SKIPPED
    of_the_cpu, cpu = run("cpu", "cpu", "shm")
    report.case("two ranks on the CPU", [] if cpu.code == 0 else [f"exit code {cpu.code}"], cpu)
    expected = losses(of_the_cpu) if cpu.code == 0 else []
    report.case(f"two ranks, {transport}", check(result, out, transport if device == "cuda" else "shm", expected), result)
    return report.exit_code()


def try_graph(run, report, device, transport, ranks):
    words = "one rank" if ranks == 1 else "two ranks"
    out, result = run("plain", device, transport, ranks=ranks)
    if device == "cuda" and "no NCCL here" in result.err:
        print(f"skipped: {result.last_error_line()}")
        return SKIPPED
    report.case(words, [] if result.code == 0 else [f"exit code {result.code}"], result)
    expected = losses(out) if result.code == 0 else []
    out, result = run("graph", device, transport, ranks=ranks, has_graph=True)
    report.case(f"{words}, steps as graphs", check_graph(result, out, device, expected), result)
    return report.exit_code()


def main():
    train, config, build_dir = (pathlib.Path(a).resolve() for a in sys.argv[1:4])
    what, device = sys.argv[4], sys.argv[5] if len(sys.argv) > 5 else "cuda"
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="gpu_train.") as folder:
        corpus = harness.bible_text(build_dir, folder) or tiny_run.write_files(folder).with_name("corpus.txt")

        def run(name, its_device, transport, **how):
            out = pathlib.Path(folder, name)
            return out, harness.run(command(train, config, out, corpus, its_device, transport, **how), 120, cwd=folder, env=NCCL_ON_ONE_GPU)

        if what == "graph":
            code = try_graph(run, report, device, "auto", ranks=1)
        elif what == "graph-nccl":
            code = try_graph(run, report, device, "nccl", ranks=2)
        else:
            code = try_ranks(run, report, device, what)
    if what == "nccl" and device == "cpu":
        result, problems = own_problems(config, build_dir)
        report.case("without NCCL it is skipped, with the reason", problems, result)
        code = report.exit_code()
    return code


if __name__ == "__main__":
    sys.exit(main())
