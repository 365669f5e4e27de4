#!/usr/bin/env python3
"""Adapters of low rank: peft has computed what is in tests/data/lora, and training from the same adapters, what is exported and what is read again
must agree with it. What is wrong with the keys or with an adapter ends with one line and nothing made.
Usage: lora_test.py TRAIN"""

import json
import re
import shutil
import struct
import sys

import harness
import tiny_run
from huggingface_test import read_tensors, write_tensors

LIMIT_S = 120
DATA = harness.ROOT / "tests" / "data"
CASES = ("gpt2", "llama", "qwen2", "patterns", "tied", "dora", "dora-gpt2")
MODEL, CANNOT_CREATE, CONFIG = 67, 73, 78
TOLERANCE = 1e-5  # relative, of sums of f32 in another order
ENV = {"OMP_NUM_THREADS": "1"}
WEIGHTS, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"


def run(command, ranks=None):
    return harness.run(harness.launch(ranks, command), LIMIT_S, env=ENV)


def wanted(case):
    return json.loads((DATA / "lora" / case / "expected.json").read_text())


def model_of(case):
    return DATA / "huggingface" / wanted(case)["model"]


def sets_of(sets):
    return sum((["--set", f"{key.replace('__', '.')}={value}"] for key, value in sets.items()), [])


def configure(work, case, out="out", model=None):
    return tiny_run.write_folder_config(work, model or model_of(case), model_of(case) / "tokens.bin", "1e-2", out)


def train_run(train, work, case, ranks=None, out="out", model=None, **sets):
    shutil.rmtree(work / out, ignore_errors=True)
    return run([train, configure(work, case, out, model), *sets_of(sets)], ranks)


def adapter(case):
    return f'"{DATA / "lora" / case}"'


def near(what, got, want, tolerance=TOLERANCE):
    return [] if abs(got - want) <= tolerance * abs(want) else [f"{what} is {got}, wanted {want}"]


def compare(result, out, case, want=None):
    """What of five steps is not as peft has it."""
    if result.code != 0:
        return [f"it ended with {result.code}"]
    want, metrics = want or wanted(case), harness.read_metrics(out)
    problems = near("gradient norm", metrics[0]["grad_norm"], want["grad_norm"])
    for m, loss in zip(metrics, want["five_adamw_steps"], strict=True):
        problems += near(f"loss of step {m['step']}", m["loss"], loss)
    return problems


def evaluate(train, case, of, *options):
    """The loss of what `of` names, or what went wrong."""
    result = run([train, "--evaluate", of, model_of(case) / "tokens.bin", "--set", "train.sequence=64", *options])
    found = re.match(r"loss (\S+) ", result.out)
    return float(found[1]) if result.code == 0 and found else float("nan"), result


def trains(train, work, report, case, ranks=None, name="", **sets):
    result = train_run(train, work, case, ranks, lora__path=adapter(case), **sets)
    report.case(f"five steps of {case}{f' at {ranks} ranks' if ranks else ''}{name and ', ' + name}", compare(result, work / "out", case), result)


def training_cases(train, work, report):
    trains(train, work, report, "gpt2", 2, "per parameter", shard__layout="per_parameter", shard__dims='["*.lora_A.weight=1"]')
    trains(train, work, report, "qwen2", 4, "hsdp", shard__strategy="hsdp", shard__group_size=2)
    trains(train, work, report, "gpt2", 4, "nested", shard__strategy="nested", shard__group_size=2)
    trains(train, work, report, "qwen2", 2, "zero1", shard__strategy="zero1")
    trains(train, work, report, "llama", 2, "ddp, recomputed", shard__strategy="ddp", train__recompute="block")
    trains(train, work, report, "llama", 2, "one unit", shard__units="model", shard__strategy="zero2", train__recompute="attention")
    trains(train, work, report, "qwen2", 2, "units of several blocks", shard__unit_mib=1, shard__strategy="shard_grad_op")
    trains(train, work, report, "tied", 2, "recomputed, in bigger units", train__recompute="block", shard__unit_mib=1)
    trains(train, work, report, "patterns", 2, "shard_grad_op", shard__strategy="shard_grad_op")
    for case in ("qwen2", "tied", "patterns", "gpt2", "llama"):
        trains(train, work, report, case)


def export_patterns(train, work, report):
    """What peft has for the keys of an adapter with patterns and modules that are trained whole, and such adapters of runs, alone and merged."""
    for case, keys in (("patterns", {"r": 4, "use_rslora": True, "rank_pattern": {"k_proj": 2, "1.mlp.up_proj": 9}, "alpha_pattern": {"0.self_attn.q_proj": 12},
                                     "modules_to_save": ["embed_tokens", "lm_head"]}),
                       ("dora", {"use_dora": True, "use_rslora": True}), ("dora-gpt2", {"use_dora": True, "fan_in_fan_out": True}),
                       ("tied", {"modules_to_save": ["wte", "ln_f", "lm_head"], "ensure_weight_tying": True, "lora_dropout": 0.0})):
        trained = train_run(train, work, case, 2, lora__path=adapter(case), out="saved", lora__export=f'"{work / f"{case}-adapter"}"',
                            run__export=f'"{work / f"{case}-merged"}"')
        problems = compare(trained, work / "saved", case)
        here = json.loads((work / f"{case}-adapter" / CONFIG_FILE).read_text()) if trained.code == 0 else {}
        problems += [f"{key} is {here.get(key)}" for key, value in keys.items() if here.get(key) != value]
        for of, options in ((work / "saved", []), (work / f"{case}-merged", []),
                            (model_of(case), ["--set", f'lora.path="{work / f"{case}-adapter"}"'])):
            loss, result = evaluate(train, case, of, *options)
            problems += near(f"the loss of {of.name}", loss, wanted(case)["merged_loss"])
        report.case(f"{case} of a run, alone and merged", problems, trained if trained.code != 0 else result)


def export_cases(train, work, report):
    """Of the run of llama's adapter that training_cases has left in out."""
    want, out = wanted("llama"), work / "out"
    export_patterns(train, work, report)
    of_run, result = evaluate(train, "llama", out)
    report.case("the run's loss is peft's of the merged model", near("the loss", of_run, want["merged_loss"]), result)
    first = run([train, "--export", work / "merged", out])
    loss, result = evaluate(train, "llama", work / "merged")
    names = set(read_tensors(work / "merged" / "model.safetensors")) if first.code == 0 else set()
    problems = near("the loss", loss, of_run, 1e-6)
    problems += [] if names == set(read_tensors(model_of("llama") / "model.safetensors")) else ["not the tensors of the model"]
    report.case("the merged export has the run's loss", problems, first if first.code != 0 else result)

    first = run([train, "--export", work / "adapter", out, "--adapter"])
    loss, result = evaluate(train, "llama", model_of("llama"), "--set", f'lora.path="{work / "adapter"}"')
    problems = near("the loss", loss, of_run, 1e-6)
    if first.code == 0:
        here, theirs = (json.loads((folder / CONFIG_FILE).read_text()) for folder in (work / "adapter", DATA / "lora" / "llama"))
        problems += [f"{key} is {here[key]}, peft has {theirs[key]}" for key in here
                     if key not in ("target_modules", "base_model_name_or_path") and here[key] != theirs[key]]
        problems += [] if sorted(here["target_modules"]) == sorted(theirs["target_modules"]) else [f"targets {here['target_modules']}"]
        shapes = [{name: t[:2] for name, t in read_tensors(folder / WEIGHTS).items()} for folder in (work / "adapter", DATA / "lora" / "llama")]
        problems += [] if shapes[0] == shapes[1] else ["other tensors than peft's"]
    report.case("the adapter that is exported has the run's loss beside the model", problems, first if first.code != 0 else result)

    for case in CASES:
        to = work / f"same-{case}"
        result = run([train, "--export", to, configure_with_adapter(work, case), "--adapter"])
        same = result.code == 0 and read_tensors(to / WEIGHTS) == read_tensors(DATA / "lora" / case / WEIGHTS)
        report.case(f"{case}'s adapter in and out", [] if same else ["its tensors differ"], result)
    to = work / "merged-gpt2"
    first = run([train, "--export", to, configure_with_adapter(work, "gpt2")])
    loss, result = evaluate(train, "gpt2", to)
    report.case("gpt2 merged without a run, fan in and fan out", near("the loss", loss, wanted("gpt2")["loss"]), first if first.code != 0 else result)
    merged = (to / "model.safetensors").read_bytes() if first.code == 0 else b""
    path = f"lora.path={adapter('gpt2')}"
    bare = work / "bare.toml"
    bare.write_text(f'model.path = "{model_of("gpt2")}"\n')
    for name, source, also in (("folder", model_of("gpt2"), ["--set", "run.dir=x"]), ("bare", bare, [])):
        result = run([train, "--export", work / f"set-{name}", source, "--set", path, *also])
        file = work / f"set-{name}" / "model.safetensors"
        problems = [] if merged and file.exists() and file.read_bytes() == merged else ["not the merged model"]
        problems += [] if ("--set of run.dir has no effect" in result.err) == bool(also) else [f"said {result.err!r}"]
        report.case(f"--export of a {name} merges the adapter that --set names", problems, result)
    for words, code, said in ((["--set", "lora.paht=x"], CONFIG, "unknown key lora.paht"), (["--dry-run"], 64, "--export and --dry-run do not go together")):
        result = run([train, "--export", work / "refused", model_of("gpt2"), *words])
        problems = [] if result.code == code and said in result.err and not (work / "refused").exists() else [f"code {result.code}, said {result.err!r}"]
        report.case(f"--export with {words[-1]} is refused", problems, result)
    result = run([train, "--export", work / "refused", work / "out", "--set", path])
    problems = [] if result.code == 64 and "export of a run or a checkpoint reads no configuration" in result.err else [f"code {result.code}"]
    report.case("--export of a run takes no --set", problems, result)
    result = run([train, "--export", work / "none", model_of("gpt2"), "--adapter"])
    report.case("a model without an adapter has none to export", [] if result.code == CONFIG else [f"code {result.code}"], result)


def configure_with_adapter(work, case):
    config = configure(work, case, "no-run")
    with config.open("a") as file:
        file.write(f"[lora]\npath = {adapter(case)}\n")
    return config


def checkpoint_cases(train, work, report):
    """A run from an adapter and a model that are gone when it goes on."""
    model, lora = work / "model", work / "lora"
    shutil.copytree(model_of("gpt2"), model)
    shutil.copytree(DATA / "lora" / "gpt2", lora)
    first = train_run(train, work, "gpt2", 2, model=model, lora__path=f'"{lora}"', train__steps=3, checkpoint__every=3,
                      checkpoint__frozen='"include"')
    shutil.rmtree(model)
    shutil.rmtree(lora)
    manifest = work / "out" / "checkpoints" / "step-3" / "manifest.json"
    tensors = json.loads(manifest.read_text())["manifest"]["tensors"] if manifest.exists() else []
    moments = {t["parameter"] for t in tensors if t["kind"] != "master"}
    base = [name for name in moments if ".lora." not in name]
    problems = [f"moments of {base[:3]}"] if base else []
    problems += [] if len(moments) == 12 else [f"{len(moments)} parameters have moments"]
    report.case("a checkpoint has moments of adapters alone", problems, first)
    to = work / "of-checkpoint"
    result = run([train, "--export", to, work / "out" / "checkpoints" / "step-3", "--adapter"])
    problems = [] if result.code == 0 and len(read_tensors(to / WEIGHTS)) == 12 else ["not 12 tensors"]
    report.case("an adapter of a checkpoint", problems, result)
    result = run([train, work / "out" / "config.toml", "--resume", "latest", "--set", "train.steps=5", "--set", f'lora.export="{work / "end"}"'])
    problems = compare(result, work / "out", "gpt2") + ([] if (work / "end" / WEIGHTS).exists() else ["no adapter was exported at the end"])
    report.case("a run goes on without the model and its adapter", problems, result)
    result = run([train, work / "out" / "config.toml", "--resume", "latest", "--set", "train.steps=6", "--set", "lora.alpha=16", "--set", 'lora.export=""'])
    problems = [] if result.code == CONFIG and "lora.alpha" in result.last_error_line() else [f"code {result.code}"]
    report.case("a run does not go on with another alpha", problems, result)


def fresh_cases(train, work, report):
    """Adapters that begin here: as nothing, and the same at any number of ranks; in bf16 too."""
    plain = json.loads((model_of("gpt2") / "expected.json").read_text())["loss"]
    keys = {"lora__rank": 4, "lora__alpha": 8, "lora__targets": '["c_attn","mlp.*"]', "train__steps": 2, "train__deterministic": "true"}
    adapters, problems = [], []
    for ranks in (1, 2, 4):
        to = work / f"fresh-{ranks}"
        result = train_run(train, work, "gpt2", ranks, lora__export=f'"{to}"', **keys)
        if result.code != 0:
            problems.append(f"{ranks} ranks end with {result.code}")
            break
        problems += near(f"first loss at {ranks} ranks", harness.read_metrics(work / "out")[0]["loss"], plain)
        adapters.append(read_tensors(to / WEIGHTS))
    problems += [] if all(a == adapters[0] for a in adapters) else ["adapters differ between numbers of ranks"]
    problems += [] if adapters and len(adapters[0]) == 12 else ["not 12 tensors"]
    report.case("new adapters at 1, 2 and 4 ranks", problems, result)
    to = work / "begun"
    result = train_run(train, work, "gpt2", 2, lora__export=f'"{to}"', **{**keys, "train__steps": 1, "train__lr": 1e-30})
    problems = [] if result.code == 0 else [f"code {result.code}"]
    for name, (_, shape, data) in read_tensors(to / WEIGHTS).items() if result.code == 0 else ():
        values = struct.unpack(f"<{len(data) // 4}f", data)
        bound, most = shape[1] ** -0.5, max(map(abs, values))
        if "lora_A" in name and not 0.95 * bound < most <= bound or abs(sum(values) / len(values)) > 0.1 * bound:
            problems.append(f"{name} is not uniform within {bound}")
        if "lora_B" in name and most > 1e-20:
            problems.append(f"{name} is not zero")
    report.case("new adapters begin as peft's do", problems, result)
    dropped, problems = [], []
    for ranks, more in ((1, {}), (2, {"train__recompute": "block"}), (2, {"lora__dropout": 0})):
        result = train_run(train, work, "gpt2", ranks, **{**keys, "lora__dropout": 0.3, **more})
        dropped.append([m["loss"] for m in harness.read_metrics(work / "out")] if result.code == 0 else [result.code])
    problems += [] if dropped[0] == dropped[1] else [f"losses differ: {dropped[:2]}"]
    problems += [] if dropped[0][0] == dropped[2][0] and dropped[0][1:] != dropped[2][1:] else [f"nothing was dropped: {dropped}"]
    report.case("dropout of adapters is the same at 1 and 2 ranks, recomputed too", problems, result)
    result = train_run(train, work, "gpt2", 2, precision__param='"bf16"', lora__path=adapter("gpt2"))
    want = wanted("gpt2")["five_adamw_steps"]
    problems = [] if result.code == 0 else [f"code {result.code}"]
    for m, loss in zip(harness.read_metrics(work / "out") if result.code == 0 else [], want):
        problems += near(f"loss of step {m['step']}", m["loss"], loss, 4e-3)  # products of 8 bits
    report.case("f32 adapters of a bf16 model", problems, result)


def preference_run(train, work, ranks=None, **sets):
    """Five steps of the 4 pairs of tests/data/preference, from gpt2's adapter."""
    want = json.loads((DATA / "preference" / "expected.json").read_text())
    shutil.rmtree(work / "out", ignore_errors=True)
    base = tiny_run.write_folder_config(work, model_of("gpt2"), DATA / "preference" / "pairs.jsonl", "1e-3")
    keys = {"data__kind": '"text"', "data__format": '"preference"', "lora__path": adapter("gpt2"), "train__global_batch": 8, "train__micro_batch": 2,
            "preference__beta": want["beta"], "run__sample_tokens": 0, **sets}
    return run([train, base, *sets_of(keys)], ranks), want


def preference_cases(train, work, report):
    """Losses, rewards and gradients of pairs are those of PyTorch and the papers' formulas, at any number of ranks and pairs in a micro-batch."""
    smooth, margin = {"preference__label_smoothing": 0.1}, {"preference__margin": 0.4}
    for loss, ranks, more in (("dpo", None, {**smooth, "train__micro_batch": 4}), ("dpo", 2, {**smooth, "train__recompute": "block"}), ("dpo", 3, smooth),
                              ("dpo", 4, {**smooth, "shard__strategy": "hsdp", "shard__group_size": 2}),
                              ("ipo", 2, {"data__validation": f'"{DATA / "preference" / "pairs.jsonl"}"', "run__validate_every": 1}), ("ipo", None, {}),
                              ("simpo", None, {**smooth, **margin, "train__micro_batch": 8}), ("simpo", 2, {**smooth, **margin})):
        result, want = preference_run(train, work, ranks, preference__loss=f'"{loss}"', **more)
        problems = [] if result.code == 0 else [f"code {result.code}"]
        metrics = harness.read_metrics(work / "out") if result.code == 0 else []
        for m, step in zip(metrics, want[loss]):
            for key, value in step.items():
                # Rewards are differences of sums of 100 nats, and gradients have a factor that depends on them.
                bound = 2e-5 if key.startswith("rewards") else (2 if key == "grad_norm" else 1) * TOLERANCE * abs(value)
                if abs(m[key] - value) > bound:
                    problems.append(f"{key} of step {m['step']} is {m[key]}, wanted {value}")
            problems += [] if abs(m["rewards_margin"] - (m["rewards_chosen"] - m["rewards_rejected"])) < 1e-6 else ["the margin is another"]
        if "run__validate_every" in more:
            for m, step in zip(metrics, want[loss][1:]):
                problems += near(f"validation after step {m['step']}", m.get("val_loss", 0), step["loss"])
        report.case(f"pairs by {loss}{f' at {ranks} ranks' if ranks else ''}", problems, result)
    (work / "bad.jsonl").write_text('{"prompt": "a", "chosen": "b"}\n')
    (work / "chat.jsonl").write_text('{"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "rejected": [{"role": "assistant", "content": "c"}]}\n')
    (work / "same.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "b"}\n')
    for name, sets, code, said in (("without adapters", {"lora__path": '""'}, CONFIG, 'preference.loss = "dpo" without adapters'),
                                   ("an odd micro-batch", {"train__micro_batch": 1, "train__global_batch": 1}, CONFIG, "a pair is two sequences"),
                                   ("a margin of dpo", {"preference__margin": 1}, CONFIG, "preference.margin does not go with"),
                                   ("smoothing of ipo", {"preference__loss": '"ipo"', "preference__label_smoothing": 0.1}, CONFIG, "preference.label_smoothing does not go"),
                                   ("beta without pairs", {"data__format": '"lines"'}, CONFIG, "preference.beta does not go with data.format"),
                                   ("a line without its rejected text", {"data__train": f'"{work / "bad.jsonl"}"'}, 65, 'no field "rejected"'),
                                   ("messages without a template", {"data__train": f'"{work / "chat.jsonl"}"'}, 65, "messages without a chat template"),
                                   ("a pair of the same", {"data__train": f'"{work / "same.jsonl"}"'}, 65, "chosen and rejected are the same")):
        result, _ = preference_run(train, work, **sets)
        problems = [] if result.code == code and said in result.last_error_line() else [f"code {result.code}, said {result.last_error_line()!r}"]
        report.case(f"pairs: {name}", problems, result)


def refused(train, work, report, name, words, code=CONFIG, case="gpt2", model=None, **sets):
    result = train_run(train, work, case, model=model, **sets)
    problems = [] if result.code == code else [f"code {result.code}, wanted {code}"]
    problems += [f"the line lacks {word!r}" for word in words if word not in result.last_error_line()]
    problems += ["a run directory was made"] if (work / "out").exists() else []
    report.case(name, problems, result)


def key_refusals(train, work, report):
    targets = {"lora__targets": '["c_attn"]'}
    refused(train, work, report, "no rank", ["lora.rank is 0"], **targets)
    refused(train, work, report, "no targets", ["lora.targets is missing", "c_attn, c_proj, c_fc"], lora__rank=4)
    refused(train, work, report, "a rank below 0", ["lora.rank is -1"], lora__rank=-1, **targets)
    refused(train, work, report, "a rank above the sizes", ["lora.rank 65 is more than transformer.h.0.attn.c_attn has, (192, 64)", "at most 64"],
            lora__rank=65, **targets)
    refused(train, work, report, "a pattern that matches nothing", ['called like "atn.c_atn"', "c_attn"], lora__rank=4, lora__targets='["c_fc","atn.c_atn"]')
    refused(train, work, report, "an adapter without its model", ["model.path is not"], lora__path=adapter("gpt2"), model__path="",
            model__preset="tiny", model__vocab=320)
    refused(train, work, report, "a rank that contradicts", ["lora.rank = 8 contradicts lora.path, where it is 4"], lora__rank=8, lora__path=adapter("gpt2"))
    refused(train, work, report, "targets that contradict", ["lora.targets = c_fc contradicts lora.path"], lora__path=adapter("gpt2"),
            lora__targets='["c_fc"]')


def changed(work, change_config=None, change_tensors=None, case="gpt2"):
    folder = work / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DATA / "lora" / case, folder)
    if change_config:
        config = json.loads((folder / CONFIG_FILE).read_text())
        config.update(change_config)
        (folder / CONFIG_FILE).write_text(json.dumps(config))
    if change_tensors:
        tensors = read_tensors(folder / WEIGHTS)
        change_tensors(tensors)
        write_tensors(folder / WEIGHTS, tensors)
    return f'"{folder}"'


def adapter_refusals(train, work, report):
    first = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
    for key, value in {"use_qalora": True, "bias": "all", "modules_to_save": ["score"], "rank_pattern": {"c_attn": 2, "attn.c_attn": 3},
                       "alpha_pattern": {"c_attn": "8"}, "peft_type": "LOHA", "init_lora_weights": "pissa", "r": "4"}.items():
        refused(train, work, report, f"an adapter with {key} = {value}", [key], MODEL, lora__path=changed(work, {key: value}))
    refused(train, work, report, "patterns of ranks that the tensors have not", ["is (4, 64), not (2, 64)"], MODEL,
            lora__path=changed(work, {"rank_pattern": {"transformer.h.0.*c_attn": 2}}))
    tied = work / "untied"
    shutil.copytree(DATA / "lora" / "tied", tied)
    (tied / CONFIG_FILE).write_text((tied / CONFIG_FILE).read_text().replace('"ensure_weight_tying": true', '"ensure_weight_tying": false'))
    refused(train, work, report, "an embedding that is trained apart from the head it is", ["modules_to_save", "ensure_weight_tying"], MODEL, lora__path=f'"{tied}"')
    refused(train, work, report, "a rank pattern that contradicts", ["lora.rank_pattern = c_attn=2 contradicts lora.path"], lora__path=adapter("gpt2"),
            lora__rank_pattern="c_attn=2")
    trained = train_run(train, work, "gpt2", lora__path=changed(work, {"lora_dropout": 0.05}), train__steps=1)
    report.case("an adapter that was trained with dropout", [] if trained.code == 0 and 'dropout = 0.05' in (work / "out" / "config.toml").read_text() else [f"code {trained.code}"], trained)
    trained = train_run(train, work, "gpt2", lora__path=changed(work, {"lora_dropout": 0.05}), lora__dropout=0)
    report.case("one with dropout, of which none is asked for", compare(trained, work / "out", "gpt2"), trained)
    refused(train, work, report, "an adapter of another model", ["not an adapter of this model", "unknown base_model.model.model.layers.0"], MODEL,
            lora__path=adapter("llama"))
    second = first.replace("lora_A", "lora_B")
    refused(train, work, report, "an adapter of another width", [f"{second} is (191, 4), not (192, 4)"], MODEL,
            lora__path=changed(work, None, lambda t: t.update({second: ("F32", [191, 4], t[second][2][:191 * 16])})))
    refused(train, work, report, "an adapter of another rank", ["12 tensors", "is (4, 64), not (2, 64)"], MODEL, lora__path=changed(work, {"r": 2}))
    refused(train, work, report, "a missing tensor", [f"1 tensor: missing {first}"], MODEL, lora__path=changed(work, None, lambda t: t.pop(first)))
    refused(train, work, report, "an unknown tensor", ["unknown base_model.model.transformer.wpe.lora_embedding_A"], MODEL,
            lora__path=changed(work, None, lambda t: t.update({"base_model.model.transformer.wpe.lora_embedding_A": t[first]})))
    refused(train, work, report, "no adapter", ["No such file"], MODEL, lora__path=f'"{work / "nothing"}"')


if __name__ == "__main__":
    sys.exit(harness.run_parts(training_cases, export_cases, checkpoint_cases, fresh_cases, preference_cases, key_refusals, adapter_refusals))
