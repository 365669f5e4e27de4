#!/usr/bin/env python3
"""Adapters of experts: five steps as peft has computed them (tests/data/lora), the files that it has of them in and out, merged weights, and what is refused.
Usage: expert_adapters_test.py TRAIN"""

import json
import pathlib
import sys

import harness
from huggingface_test import CONFIG, read_tensors
from lora_test import CONFIG_FILE, DATA, MODEL, WEIGHTS, adapter, changed, compare, evaluate, model_of, near, refused, run, train_run, trains, wanted

CASES = ("experts", "experts-gpt-oss", "experts-down")


def training_cases(train, work, report):
    for case, ranks in zip(CASES, (2, 3, 1), strict=True):
        trains(train, work, report, case, ranks)
    trains(train, work, report, "experts", 4, "hsdp, recomputed", shard__strategy="hsdp", shard__group_size=2, train__recompute="block")
    trains(train, work, report, "experts-gpt-oss", 2, "per parameter, attention recomputed", shard__layout="per_parameter", train__recompute="attention")
    trains(train, work, report, "experts-down", 3, "ddp", shard__strategy="ddp")


def export_cases(train, work, report):
    """What is trained is exported under peft's names, read again, and merged."""
    for case, keys in (("experts", {"target_modules": ["q_proj"], "target_parameters": ["down_proj", "gate_up_proj"], "r": 4}),
                       ("experts-gpt-oss", {"target_modules": [], "target_parameters": ["1.mlp.experts.down_proj", "gate_up_proj"], "use_rslora": True}),
                       ("experts-down", {"target_modules": ["v_proj"], "target_parameters": ["experts.down_proj"], "rank_pattern": {"1.mlp.experts.down_proj": 3}})):
        to, merged = work / f"{case}-adapter", work / f"{case}-merged"
        trained = train_run(train, work, case, 2, lora__path=adapter(case), lora__export=f'"{to}"', run__export=f'"{merged}"')
        problems = compare(trained, work / "out", case)
        if trained.code == 0:
            here, theirs = json.loads((to / CONFIG_FILE).read_text()), read_tensors(DATA / "lora" / case / WEIGHTS)
            problems += [f"{key} is {here.get(key)}" for key, value in keys.items() if here.get(key) != value]
            own = {name: tensor[:2] for name, tensor in read_tensors(to / WEIGHTS).items()}
            problems += [] if own == {name: tensor[:2] for name, tensor in theirs.items()} else [f"tensors {sorted(own)}"]
        for of, options in ((work / "out", []), (merged, []), (model_of(case), ["--set", f'lora.path="{to}"'])):
            loss, result = evaluate(train, case, of, *options)
            problems += near(f"the loss of {pathlib.Path(of).name}", loss, wanted(case)["merged_loss"])
        report.case(f"{case} out, in and merged", problems, result)
        still = work / f"{case}-still"
        result = train_run(train, work, case, 3, lora__path=adapter(case), lora__export=f'"{still}"', train__steps=1, train__lr=1e-30)
        same = result.code == 0 and read_tensors(still / WEIGHTS) == read_tensors(DATA / "lora" / case / WEIGHTS)
        report.case(f"{case} in and out", [] if same else ["the tensors differ"], result)


def begins(train, work, report):
    """New adapters of experts by patterns, and by "all-linear": the model is at first what it is without."""
    for case, targets, count in (("experts", '"all-linear"', 2 * (4 + 2)), ("experts-down", '["experts.*"]', 2 * 2), ("experts-gpt-oss", '["gate_up_proj", "self_attn.*"]', 2 * (1 + 4))):
        to = work / f"new-{case}"
        result = train_run(train, work, case, 2, lora__rank=2, lora__targets=targets, lora__export=f'"{to}"', precision__param='"bf16"', precision__frozen='"bf16"')
        losses = [m["loss"] for m in harness.read_metrics(work / "out")] if result.code == 0 else []
        first = json.loads((model_of(case) / "expected.json").read_text())["loss"]
        problems = [] if losses and abs(losses[0] - first) < 1e-3 * first and losses[-1] < losses[0] else [f"losses {losses}, without adapters {first}"]
        made = len(read_tensors(to / WEIGHTS)) if result.code == 0 else 0
        if case == "experts" and result.code == 0:
            file = run([train, "export", work / "out", work / "experts.gguf", "--adapter"])
            problems += [] if file.code == MODEL and "holds none of an embedding or of experts" in file.last_error_line() else [f"a GGUF adapter: {file}"]
        report.case(f"new adapters of {targets} in {case}", problems + ([] if made == 2 * count else [f"{made} tensors, not {2 * count}"]), result)


def refusal_cases(train, work, report):
    new = {"lora__rank": 2, "lora__targets": '["experts.*"]'}
    refused(train, work, report, "an adapter of a router", ['"mlp.*" is of', "routers can have no adapters"], CONFIG, "experts-gpt-oss", lora__rank=2, lora__targets='["mlp.*"]')
    refused(train, work, report, "magnitudes of experts", ["lora.dora", "of experts, have no magnitudes"], CONFIG, "experts", lora__dora="true", **new)
    refused(train, work, report, "dropout of experts", ["lora.dropout", "of experts, have no dropout"], CONFIG, "experts", lora__dropout=0.1, **new)
    refused(train, work, report, "a rank beyond experts", ["lora.rank 33 is more than", "(32, 56)"], CONFIG, "experts", **{**new, "lora__rank": 33, "lora__targets": '["experts.down_proj"]'})
    refused(train, work, report, "adapters of dealt experts", ["experts.parallel = 2 does not go with adapters of model.layers.0.mlp.experts.gate_up_proj"], CONFIG, "experts",
            experts__parallel=2, comm__ranks=2, **new)
    lost = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight"
    refused(train, work, report, "an adapter that lacks a tensor", ["missing " + lost], MODEL, "experts", lora__path=changed(work, None, lambda t: t.pop(lost), "experts"))


if __name__ == "__main__":
    sys.exit(harness.run_parts(training_cases, export_cases, begins, refusal_cases))
