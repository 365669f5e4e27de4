#!/usr/bin/env python3
"""Adapters with magnitudes (DoRA): five steps as peft has computed them (tests/data/lora) in every strategy; how magnitudes begin, go on and are refused.
Usage: dora_test.py TRAIN"""

import re
import shutil
import struct
import sys

import harness
from huggingface_test import read_tensors
from lora_test import MODEL, WEIGHTS, adapter, changed, configure, model_of, near, preference_run, refused, run, sets_of, train_run, trains


def training_cases(train, work, report):
    trains(train, work, report, "dora", 2, "per parameter", shard__layout="per_parameter", shard__dims='["*.lora_A.weight=1"]')
    trains(train, work, report, "dora", 3)
    trains(train, work, report, "dora", 4, "hsdp", shard__strategy="hsdp", shard__group_size=2)
    trains(train, work, report, "dora", 4, "nested", shard__strategy="nested", shard__group_size=2)
    trains(train, work, report, "dora", 2, "ddp, recomputed", shard__strategy="ddp", train__recompute="block")
    trains(train, work, report, "dora-gpt2", 2, "zero1", shard__strategy="zero1", train__recompute="attention")
    trains(train, work, report, "dora-gpt2", 2, "one unit", shard__strategy="zero2", shard__units="model")
    trains(train, work, report, "dora-gpt2", 2, "units of several blocks", shard__unit_mib=1, shard__strategy="shard_grad_op")
    for case in ("dora", "dora-gpt2"):
        trains(train, work, report, case)


def row_norms(tensors, name):
    """Norms of the rows of GPT-2's weight, which files have transposed."""
    _, (inputs, outputs), data = tensors[name]
    values = struct.unpack(f"<{inputs * outputs}f", data)
    return [sum(values[i * outputs + row] ** 2 for i in range(inputs)) ** 0.5 for row in range(outputs)]


def begins(train, work, report):
    """Magnitudes that begin here: as the norms of rows, so that the model is at first what it is without; in every precision, and gone on with."""
    keys = {"lora__rank": 4, "lora__targets": '["c_attn","mlp.*"]', "train__deterministic": "true"}
    for name, sets in (("f32", {}), ("bf16", {"precision__param": '"bf16"'}), ("nf4", {"precision__param": '"bf16"', "precision__quantize": '"nf4"'}),
                       ("int8, dropout", {"precision__quantize": '"int8"', "lora__dropout": 0.3})):
        losses = []
        for dora in ("true", "false"):
            result = train_run(train, work, "gpt2", 2, lora__dora=dora, train__steps=3, **keys, **sets)
            losses.append([m["loss"] for m in harness.read_metrics(work / "out")] if result.code == 0 else [result.code, dora])
        problems = [] if losses[0][0] == losses[1][0] and losses[0][1:] != losses[1][1:] else [f"losses {losses}"]
        report.case(f"new magnitudes leave a model in {name} as it is, and are trained", problems, result)
    wanted_norms = row_norms(read_tensors(model_of("gpt2") / "model.safetensors"), "transformer.h.0.attn.c_attn.weight")
    adapters, problems = [], []
    for ranks, more in ((1, {}), (3, {"shard__layout": '"per_parameter"'}), (4, {"shard__strategy": '"ddp"'}), (2, {"shard__units": '"model"'})):
        to = work / f"magnitudes-{ranks}"
        result = train_run(train, work, "gpt2", ranks, lora__export=f'"{to}"', train__steps=1, train__lr=1e-30, lora__dora="true", **keys, **more)
        if result.code != 0:
            problems.append(f"{ranks} ranks end with {result.code}")
            break
        adapters.append(read_tensors(to / WEIGHTS))
        _, shape, data = adapters[-1]["base_model.model.transformer.h.0.attn.c_attn.lora_magnitude_vector"]
        for got, want in zip(struct.unpack(f"<{shape[0]}f", data), wanted_norms, strict=True):
            problems += near(f"a magnitude at {ranks} ranks", got, want, 1e-6)
    problems += [] if all(a == adapters[0] for a in adapters) else ["adapters differ between numbers of ranks"]
    report.case("new magnitudes are the rows' norms at 1 to 4 ranks", problems[:5], result)
    hashes = []
    for steps, more in ((4, []), (2, []), (4, ["--resume", "latest"])):
        if not more:
            shutil.rmtree(work / "out", ignore_errors=True)
        sets = {"lora__dora": "true", "lora__dropout": 0.1, "checkpoint__every": 2, "train__steps": steps, **keys}
        result = run([train, configure(work, "gpt2"), *sets_of(sets), *more], 3)
        hashes.append(re.search(r"weights: (\S+)", result.out)[1] if result.code == 0 else f"code {result.code}")
    report.case("a run with magnitudes goes on to the same bits", [] if hashes[0] == hashes[2] != hashes[1] else [f"hashes {hashes}"], result)
    result = run([train, "--export", work / "magnitudes.gguf", work / "out", "--adapter"])
    problems = [] if result.code == MODEL and "holds no magnitudes (lora.dora)" in result.last_error_line() else [f"code {result.code}"]
    report.case("a GGUF file of an adapter with magnitudes is refused", problems, result)
    for name, sets, check in (("new", {"lora__path": '""', "lora__dora": "true", "lora__dropout": 0, **keys}, lambda steps: all(m["rewards_margin"] == 0 for m in steps[:1]) and steps[1]["rewards_margin"] > 0),
                              ("given", {"lora__path": adapter("dora-gpt2")}, lambda steps: steps[0]["rewards_margin"] != 0)):
        result, _ = preference_run(train, work, 2, preference__loss='"dpo"', **sets)
        steps = harness.read_metrics(work / "out") if result.code == 0 else []
        report.case(f"the reference of {name} magnitudes is the model without", [] if steps and check(steps) else [f"code {result.code}, {steps[:1]}"], result)
    refused(train, work, report, "magnitudes that contradict", ["lora.dora = true contradicts lora.path, where it is false"], lora__dora="true", lora__path=adapter("gpt2"))
    refused(train, work, report, "magnitudes without a rank", ["lora.rank is 0"], lora__dora="true")
    first = "base_model.model.transformer.h.0.attn.c_attn.lora_magnitude_vector"
    refused(train, work, report, "an adapter without its magnitudes", [f"missing {first}"], MODEL, lora__path=changed(work, None, lambda t: t.pop(first), "dora-gpt2"))
    refused(train, work, report, "magnitudes without use_dora", ["unknown base_model", "lora_magnit"], MODEL, lora__path=changed(work, {"use_dora": False}, None, "dora-gpt2"))


if __name__ == "__main__":
    sys.exit(harness.run_parts(training_cases, begins))
