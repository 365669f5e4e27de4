#!/usr/bin/env python3
"""Adapters of the token embedding: five steps as peft has computed them (tests/data/lora), in and out, merged, beside a head that is tied to it, several adapters
merged with weights, and what is refused. Usage: embedding_adapters_test.py TRAIN"""

import json
import re
import shutil
import struct
import sys

import harness
from huggingface_test import read_tensors
from lora_test import DATA, MODEL, WEIGHTS, adapter, changed, compare, configure, evaluate, model_of, near, preference_run, refused, run, sets_of, train_run, trains, wanted

CASES = ("embedding", "embedding-gpt2", "embedding-gemma3")
BASE = "base_model.model.model.embed_tokens.base_layer.weight"


def training_cases(train, work, report):
    trains(train, work, report, "embedding", 2, "per parameter", shard__layout="per_parameter", shard__dims='["*.lora_embedding_A=1"]')
    trains(train, work, report, "embedding", 3, "one unit", shard__units="model", shard__strategy="zero2")
    trains(train, work, report, "embedding", 4, "hsdp", shard__strategy="hsdp", shard__group_size=2)
    trains(train, work, report, "embedding-gpt2", 4, "nested", shard__strategy="nested", shard__group_size=2)
    trains(train, work, report, "embedding-gpt2", 2, "ddp, recomputed", shard__strategy="ddp", train__recompute="block")
    trains(train, work, report, "embedding-gemma3", 2, "zero1", shard__strategy="zero1")
    trains(train, work, report, "embedding-gemma3", 2, "shard_grad_op", shard__strategy="shard_grad_op", shard__unit_mib=1)
    for case in CASES:
        trains(train, work, report, case)


def export_cases(train, work, report):
    for case, tied in (("embedding", False), ("embedding-gpt2", True), ("embedding-gemma3", True)):
        to, merged = work / f"{case}-adapter", work / f"{case}-merged"
        trained = train_run(train, work, case, 2, lora__path=adapter(case), out="saved", lora__export=f'"{to}"', run__export=f'"{merged}"')
        problems = compare(trained, work / "saved", case)
        for of, options in ((work / "saved", []), (merged, []), (model_of(case), ["--set", f'lora.path="{to}"'])):
            loss, result = evaluate(train, case, of, *options)
            problems += near(f"the loss of {of.name}", loss, wanted(case)["merged_loss"])
        if trained.code == 0:
            says = json.loads((merged / "config.json").read_text()).get("tie_word_embeddings", True)
            has_head = "lm_head.weight" in read_tensors(merged / "model.safetensors")
            problems += [] if says is False and has_head else [f"the merged model's head: tied {says}, there {has_head}"]
            problems += [] if any(name.endswith("lora_embedding_A") for name in read_tensors(to / WEIGHTS)) else ["no adapter of the embedding"]
        report.case(f"{case} of a run, alone and merged{', with a head of its own' if tied else ''}", problems, trained if trained.code != 0 else result)
    for case in CASES:
        to = work / f"same-{case}"
        path = configure(work, case, "no-run")
        path.write_text(path.read_text() + f"[lora]\npath = {adapter(case)}\n")
        result = run([train, "--export", to, path, "--adapter"])
        theirs = {name: tensor for name, tensor in read_tensors(DATA / "lora" / case / WEIGHTS).items() if name != BASE}
        report.case(f"{case}'s adapter in and out", [] if result.code == 0 and read_tensors(to / WEIGHTS) == theirs else ["its tensors differ"], result)
    result = run([train, "--export", work / "embedding.gguf", work / "saved", "--adapter"])
    problems = [] if result.code == MODEL and "holds none of an embedding" in result.last_error_line() else [f"code {result.code}"]
    report.case("a GGUF file of an embedding's adapter is refused", problems, result)


def merge_cases(train, work, report):
    """Several adapters merged with weights, as peft says what each changes; and what cannot be merged so."""
    want, lora = json.loads((DATA / "lora" / "weighted.json").read_text()), DATA / "lora"
    base = DATA / "huggingface" / want["model"]

    def export(name, *words):
        return run([train, "export", base, work / name, *words])
    first = export("weighted", *[word for name, weight in want["adapters"].items() for word in ("--merge", f"{lora / name}={weight}")])
    loss, result = evaluate(train, "embedding", work / "weighted")
    report.case("two adapters merged with weights", near("the loss", loss, want["loss"]), first if first.code != 0 else result)
    halves = export("halves", "--merge", f"{lora / 'llama'}=0.5", "--set", f'lora.path="{lora / "embedding"}"', "--merge", f"{lora / 'llama'}=0.5")
    once = export("once", "--merge", lora / "embedding", "--merge", lora / "llama")
    losses = [evaluate(train, "embedding", work / name)[0] for name in ("halves", "once")]
    report.case("halves of an adapter are the whole", near("the loss", losses[0], losses[1], 1e-6), halves if halves.code != 0 else once)
    for name, words, code, said in (("magnitudes", ["--merge", f"{lora / 'dora'}=0.5"], MODEL, "has magnitudes (DoRA)"),
                                    ("modules that were trained whole", ["--merge", lora / "patterns"], MODEL, "has modules that were trained whole"),
                                    ("another model's", ["--merge", lora / "gpt2"], MODEL, "not an adapter of this model"),
                                    ("a weight that is no number", ["--merge", f"{lora / 'llama'}=half"], 64, "the weight is no number"),
                                    ("one that is not there", ["--merge", work / "nothing"], MODEL, "No such file"),
                                    ("an adapter alone", ["--merge", lora / "llama", "--adapter"], 64, "--adapter writes one adapter")):
        result = export("not-merged", *words)
        problems = [] if result.code == code and said in result.last_error_line() and not (work / "not-merged").exists() else [f"code {result.code}, said {result.last_error_line()!r}"]
        report.case(f"{name}: not merged", problems, result)


def fresh_cases(train, work, report):
    """Adapters that begin here as peft's do, the same at any number of ranks, and go on to the same bits."""
    keys = {"lora__rank": 4, "lora__targets": '["wte","c_fc"]', "train__deterministic": "true"}
    plain, adapters, problems = wanted("embedding-gpt2"), [], []
    for ranks in (1, 3):
        to = work / f"fresh-{ranks}"
        result = train_run(train, work, "embedding-gpt2", ranks, lora__export=f'"{to}"', train__steps=1, train__lr=1e-30, **keys)
        if result.code != 0:
            problems.append(f"{ranks} ranks end with {result.code}")
            break
        problems += near("the first loss", harness.read_metrics(work / "out")[0]["loss"], json.loads((DATA / "huggingface" / plain["model"] / "expected.json").read_text())["loss"])
        adapters.append(read_tensors(to / WEIGHTS))
        for name, deviation in (("lora_embedding_A", 0), ("lora_embedding_B", 1)):
            _, shape, data = adapters[-1][f"base_model.model.transformer.wte.{name}"]
            values = struct.unpack(f"<{len(data) // 4}f", data)
            found = (sum(v * v for v in values) / len(values)) ** 0.5
            problems += [] if abs(found - deviation) <= 0.15 * deviation + 1e-20 else [f"{name} {shape} has the deviation {found}"]
    problems += [] if adapters and all(a == adapters[0] for a in adapters) else ["adapters differ between numbers of ranks"]
    report.case("new adapters of an embedding begin as peft's do", problems, result)
    hashes = []
    for steps, more in ((4, []), (2, []), (4, ["--resume", "latest"])):
        if not more:
            shutil.rmtree(work / "out", ignore_errors=True)
        sets = {"checkpoint__every": 2, "train__steps": steps, "precision__param": '"bf16"', "precision__quantize": '"nf4"', **keys}
        result = run([train, configure(work, "embedding-gpt2"), *sets_of(sets), *more], 2)
        hashes.append(re.search(r"weights: (\S+)", result.out)[1] if result.code == 0 else f"code {result.code}")
    report.case("a run with one beside a base in 4 bits goes on to the same bits", [] if hashes[0] == hashes[2] != hashes[1] else [f"hashes {hashes}"], result)


def reference_case(train, work, report):
    """The reference of pairs is the model without the embedding's adapter, too."""
    for name, sets, is_same in (("new", {"lora__path": '""', "lora__rank": 4, "lora__targets": '["wte"]'}, True), ("given", {"lora__path": adapter("embedding-gpt2")}, False)):
        result, _ = preference_run(train, work, 2, preference__loss='"dpo"', **sets)
        steps = harness.read_metrics(work / "out") if result.code == 0 else []
        problems = [] if steps and (steps[0]["rewards_margin"] == 0) == is_same and steps[1]["rewards_margin"] != 0 else [f"code {result.code}, {steps[:2]}"]
        report.case(f"the reference of a {name} adapter of the embedding is the model without", problems, result)


def refusals(train, work, report):
    target = {"lora__rank": 4, "lora__targets": '["wte"]'}
    refused(train, work, report, "magnitudes of an embedding", ["lora.dora does not go with an adapter of transformer.wte"], lora__dora="true", **target)
    refused(train, work, report, "an embedding that is trained whole, too", ["both name transformer.wte"], lora__modules_to_save="wte", **target)
    refused(train, work, report, "learned positions", ['nor the embedding, is called like "wpe"'], **{**target, "lora__targets": '["wpe"]'})
    refused(train, work, report, "an adapter over ranks of products", ["tensor.parallel"], tensor__parallel=2, **target)
    refused(train, work, report, "an adapter file with use_dora of an embedding", ["use_dora"], MODEL, lora__path=changed(work, {"use_dora": True}, None, "embedding-gpt2"))
    refused(train, work, report, "one that adapts the head that is tied, too", ["ensure_weight_tying"], MODEL,
            lora__path=changed(work, {"ensure_weight_tying": True}, None, "embedding-gpt2"))

    def change_base(tensors):
        dtype, shape, data = tensors[BASE]
        tensors[BASE] = (dtype, shape, data[:-1] + bytes([data[-1] ^ 1]))
    refused(train, work, report, "one beside another embedding", [f"{BASE} is another embedding than the model's"], MODEL, case="embedding",
            lora__path=changed(work, None, change_base, "embedding"))
    first = "base_model.model.transformer.wte.lora_embedding_B"
    refused(train, work, report, "one without its B", [f"missing {first}"], MODEL, lora__path=changed(work, None, lambda t: t.pop(first), "embedding-gpt2"))


if __name__ == "__main__":
    sys.exit(harness.run_parts(training_cases, export_cases, merge_cases, fresh_cases, reference_case, refusals))
