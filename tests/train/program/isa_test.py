#!/usr/bin/env python3
"""The losses of 20 steps on every instruction set this processor has, against its best one: the same bits with one thread and with two,
and on the others within BOUND. Usage: isa_test.py TRAIN"""

import pathlib
import sys
import tempfile

import harness
import tiny_run

STEPS = 20
# Products sum in another order on another instruction set, so each step's gradients differ by f32 rounding; measured: 1.5e-7 in 20 steps.
BOUND = 1e-5
# ours, the cap on oneDNN's choice under both names that its versions read
ISAS = [("amx", "AVX512_CORE_AMX"), ("avx512", "AVX512_CORE_BF16"), ("avx2", "AVX2"), ("baseline", "SSE41")]


def losses_of(train, folder, isa, cap, threads, name, param="f32"):
    config = tiny_run.write_files(folder, name)
    sets = tiny_run.options(train__steps=STEPS, run__sample_tokens=0, precision__param=param)
    env = {"ZSHARD_ISA": isa, "ONEDNN_MAX_CPU_ISA": cap, "DNNL_MAX_CPU_ISA": cap, "OMP_NUM_THREADS": str(threads)}
    result = harness.run([str(train), str(config), *sets], 120, cwd=folder, env=env)
    if result.code != 0:
        return None, result
    if f"cpu {isa}" not in result.out.partition("\n")[0]:
        raise SystemExit(f"{isa} was asked for, the run says {result.out.partition(chr(10))[0]}")
    return [m["loss"] for m in harness.read_metrics(pathlib.Path(folder, name))], result


def compare(report, train, folder, reference, isa, cap, threads, bound, param="f32"):
    name = f"{isa}, {param}, {threads} thread{'s' if threads > 1 else ''}"
    losses, result = losses_of(train, folder, isa, cap, threads, f"{isa}-{param}-{threads}", param)
    problems = [] if losses else [f"exit code {result.code}"]
    for step, (a, b) in enumerate(zip(reference, losses or []), 1):
        if abs(a - b) > bound * abs(a):
            problems.append(f"step {step}: loss {b}, expected {a} within {bound:g} of it")
            break
    print(f"{name}: largest relative difference {max((abs(a - b) / abs(a) for a, b in zip(reference, losses or [])), default=0):.3g}")
    report.case(name, problems, result if problems else "")


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    harness.become_subreaper()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="isa.") as folder:
        here = [(isa, cap) for isa, cap in ISAS if losses_of(train, folder, isa, cap, 1, f"probe-{isa}")[0]]
        if not here:
            print("skipped: no instruction set could be forced here")
            return harness.SKIP
        best, cap = here[0]
        reference, _ = losses_of(train, folder, best, cap, 1, "reference")
        if len(set(reference)) < STEPS // 2:
            raise SystemExit(f"the reference says nothing: {reference}")
        compare(report, train, folder, reference, best, cap, 2, 0.0)
        narrow, _ = losses_of(train, folder, best, cap, 1, "narrow", "bf16")
        if narrow == reference:
            raise SystemExit("bf16 gave the losses of f32")
        compare(report, train, folder, narrow, best, cap, 2, 0.0, "bf16")
        for isa, cap in here[1:]:
            compare(report, train, folder, reference, isa, cap, 1, BOUND)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
