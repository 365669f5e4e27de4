#!/usr/bin/env python3
"""Models in the form of Hugging Face folders: transformers has computed what is in tests/data/huggingface, and training, evaluation, samples and export
must agree with it. What is wrong with a folder ends with one line, exit code 67 and nothing made.
Usage: huggingface_test.py TRAIN [--long]"""

import json
import os
import pathlib
import re
import shutil
import struct
import sys
import tempfile

import harness
import tiny_run

LIMIT_S = 120
CASES = harness.ROOT / "tests" / "data" / "huggingface"
FAMILIES = ("gpt2", "llama", "llama3-rope", "mistral-window", "qwen2", "qwen3", "olmo2", "phi3", "smollm3", "gemma3")  # mixtures: mixtures_test.py
MODEL, CANNOT_CREATE, CONFIG = 67, 73, 78
TOLERANCE = 1e-5  # relative, of sums of f32 in another order
F32, BF16 = (TOLERANCE, TOLERANCE), (1e-3, 2**-8)  # of losses, and of the gradient's norm
ENV = {"OMP_NUM_THREADS": "1"}


def run(command, ranks=None):
    return harness.run(harness.launch(ranks, command), LIMIT_S, env=ENV)


def configure(work, folder, out="out", case=None):
    return tiny_run.write_folder_config(work, folder, (CASES / case if case else folder) / "tokens.bin", "1e-3", out)


def read_tensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + length + t["data_offsets"][0]:8 + length + t["data_offsets"][1]]) for name, t in header.items()}


def read_all(folder):
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in read_tensors(path).items()}


def write_tensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def copied(work, case, change_config=None, change_tensors=None):
    """A copy of the case with another config.json, or other tensors."""
    folder = work / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(CASES / case, folder)
    if change_config:
        config = json.loads((folder / "config.json").read_text())
        change_config(config)
        (folder / "config.json").write_text(json.dumps(config))
    if change_tensors:
        tensors = read_tensors(folder / "model.safetensors")
        write_tensors(folder / "model.safetensors", change_tensors(tensors) or tensors)
    return folder


def compare(result, out, case, bounds=F32):
    """What of five steps is not as transformers has it."""
    if result.code != 0:
        return [f"it ended with {result.code}"]
    want = json.loads((CASES / case / "expected.json").read_text())
    metrics = harness.read_metrics(out)
    pairs = [(f"loss of step {m['step']}", m["loss"], loss, bounds[0]) for m, loss in zip(metrics, want["five_adamw_steps"]["losses"], strict=True)]
    pairs.append(("gradient norm", metrics[0]["grad_norm"], want["grad_norm"], bounds[1]))
    return [f"{what} is {got}, wanted {wanted}" for what, got, wanted, bound in pairs if not abs(got - wanted) <= bound * abs(wanted)]


def trains(train, work, report, case, ranks=None, name="", folder=None, has_own=False, **sets):
    """has_own: `folder` has tokens, and what is expected of them."""
    shutil.rmtree(work / "out", ignore_errors=True)
    options = sum((["--set", f"{key.replace('__', '.')}={value}"] for key, value in sets.items()), [])
    result = run([train, configure(work, folder or CASES / case, case=None if has_own else case), *options], ranks)
    problems = compare(result, work / "out", folder if has_own else case, BF16 if "precision__param" in sets else F32)
    report.case(f"five steps of {case}{f' at {ranks} ranks' if ranks else ''}{name and ', ' + name}", problems, result)


def evaluates(train, report, name, folder, loss, ranks=None, options=()):
    result = run([train, "--evaluate", folder, folder / "tokens.bin", "--set", "train.sequence=64", *options], ranks)
    found = re.match(r"loss (\S+)", result.out)
    problems = [] if found and abs(float(found[1]) - loss) < 1e-6 * loss else [f"the loss is not {loss}"]
    report.case(f"the loss of {name}{f' at {ranks} ranks' if ranks else ''}{''.join(options[1:2]) and ', ' + options[1]}", problems, result)


def training_cases(train, work, report, is_long):
    for case in FAMILIES:
        trains(train, work, report, case)
    trains(train, work, report, "gpt2", 2, "per parameter", shard__layout="per_parameter", shard__dims='["blocks.*.mlp.*.weight=1"]')
    trains(train, work, report, "qwen3", 4, "hsdp", shard__strategy="hsdp", shard__group_size=2)
    trains(train, work, report, "llama", 2, "bf16", precision__param="bf16")
    if not is_long:
        return
    for case in FAMILIES:
        loss = json.loads((CASES / case / "expected.json").read_text())["loss"]
        trains(train, work, report, case, 2, "bf16", precision__param="bf16")
        for layout in ("flat", "per_parameter"):
            for ranks in (2, 3, 4):
                trains(train, work, report, case, ranks, f"zero3, {layout}", shard__strategy="zero3", shard__layout=layout)
            trains(train, work, report, case, 4, f"hsdp, {layout}", shard__strategy="hsdp", shard__group_size=2, shard__layout=layout)
            for ranks in (1, 2, 3, 4):
                evaluates(train, report, case, CASES / case, loss, ranks, ["--set", f"shard.layout={layout}"])
        trains(train, work, report, case, 4, "ddp", shard__strategy="ddp")


def padding_cases(train, work, report):
    """What transformers computes where tokens are padding: see make_padding.py."""
    for case, want in json.loads((CASES / "padding.json").read_text())["cases"].items():
        folder = copied(work, case, lambda config: config.update(pad_token_id=want["pad_token_id"]))
        tokens = list(struct.unpack("<257H", (CASES / case / "tokens.bin").read_bytes()))
        tokens[::3] = [want["row"]] * len(tokens[::3])
        tiny_run.write_uint16_tokens(folder / "tokens.bin", tokens)
        (folder / "expected.json").write_text(json.dumps(want))
        for ranks in (None, 3):
            trains(train, work, report, case, ranks, f"pad_token_id {want['pad_token_id']}", folder, True)
        shutil.rmtree(work / "plain", ignore_errors=True)
        folder.rename(work / "moved")  # what is exported is what the run knows
        result = run([train, "--export", work / "plain", work / "out"])
        told = json.loads((work / "plain" / "config.json").read_text())["pad_token_id"] if result.code == 0 else None
        (work / "moved").rename(folder)
        report.case(f"pad_token_id of {case} is exported", [] if told == want["row"] else [f"it is {told}"], result)
    shutil.rmtree(work / "out")
    result = run([train, configure(work, folder), "--set", "model.pad_token_id=-1"])
    problems = compare(result, work / "out", folder)
    report.case("padding that is not wanted", [] if result.code == 0 and problems else ["it trains as if it were"], result)


def tensor_cases(train, work, report):
    def renamed(pattern, replacement):
        return lambda tensors: {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}

    trains(train, work, report, "gpt2", name="names without transformer.", folder=copied(work, "gpt2", None, renamed(r"^transformer\.", "")))
    trains(train, work, report, "qwen2", name="the head's name", folder=copied(work, "qwen2", None, renamed("model.embed_tokens", "lm_head")))

    def with_masks(tensors):
        tensors.update({"transformer.h.0.attn.bias": ("U8", [2], b"12"), "h.1.attn.masked_bias": ("F32", [], b"1234")})
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]

    def with_head(tensors):
        dtype, shape, values = tensors["model.embed_tokens.weight"]
        tensors["lm_head.weight"] = (dtype, shape, values[:-4] + struct.pack("<f", 0.125))

    for ranks in (None, 2):
        shutil.rmtree(work / "out", ignore_errors=True)
        result = run([train, configure(work, copied(work, "qwen2", None, with_head))], ranks)
        problems = [] if result.code == MODEL and "lm_head.weight has other values" in result.err else [f"code {result.code}"]
        report.case(f"a tied head with other values, at {ranks or 1} ranks", problems, result)
    trains(train, work, report, "gpt2", name="masks and the tied head", folder=copied(work, "gpt2", None, with_masks))

    folder = copied(work, "qwen3")
    tensors = sorted(read_tensors(folder / "model.safetensors").items())
    weight_map = {}
    for i in range(3):
        file = f"model-{i + 1:05}-of-00003.safetensors"
        write_tensors(folder / file, dict(tensors[i::3]))
        weight_map.update({name: file for name, _ in tensors[i::3]})
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    trains(train, work, report, "qwen3", 2, "three files", folder=folder)

    def older(config):
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope
        config["torch_dtype"] = config.pop("dtype")
        config.update({"_name_or_path": "somewhere", "pretraining_tp": 1, "my_note": {"any": [1, "thing"]}})

    trains(train, work, report, "llama3-rope", name="an older config.json", folder=copied(work, "llama3-rope", older))


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}
# What transformers makes of settings that go together in its own way: case, changes of config.json, loss.
EVALUATED = [
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 5.86387014), ("llama", {"rope_parameters": {}, "rope_theta": 77.0}, 5.86791992),
    ("llama", {"rope_parameters": LLAMA3, "original_max_position_embeddings": 16}, 5.86289072),
    ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32}, "original_max_position_embeddings": 16}, 5.86289072),
    ("gpt2", {"num_attention_heads": 2}, 5.83642912), ("gpt2", {"reorder_and_upcast_attn": True}, 5.83640671), ("gpt2", {"n_embd": 32, "hidden_size": 64, "n_positions": 7, "max_position_embeddings": 128}, 5.83640671),
    ("llama", {"hidden_act": "swish", "use_cache": False, "pretraining_tp": 2, "attention_dropout": None}, 5.86375475),
    ("qwen2", {"use_sliding_window": False, "sliding_window": 0}, 5.89359188),
    ("gemma3", {"rope_parameters": None, "layer_types": None, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 3}, 5.83203459),  # as published
    ("llama", {"rope_parameters": YARN}, 5.85720646), ("llama", {"rope_scaling": {**YARN, "truncate": False}}, 5.85655270),
    ("llama", {"rope_parameters": {**YARN, "beta_fast": 2.0, "beta_slow": 0.25}}, 5.86245735),
    ("gpt-oss", {"rope_parameters": None, "layer_types": None}, 5.88902530),
]


def answers(train, work, report, case, ranks=3):
    """Loss, logits, and the greedy continuation."""
    folder, want = CASES / case, json.loads((CASES / case / "expected.json").read_text())
    (work / "logits.bin").unlink(missing_ok=True)
    result = run([train, "--evaluate", folder, folder / "tokens.bin", "--set", "train.sequence=64", "--logits", work / "logits.bin"], ranks)
    found = re.fullmatch(r"loss (\S+) perplexity \S+ tokens 256\n", result.out)
    problems = [] if found and abs(float(found[1]) - want["loss"]) < TOLERANCE * want["loss"] else ["another loss than transformers'"]
    if not problems:
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        row = struct.unpack("<8f", (work / "logits.bin").read_bytes()[63 * vocab * 4:][:32])
        problems += [f"logit {a}, wanted {b}" for a, b in zip(row, want["logits"]["first8"]) if abs(a - b) > 2e-5 * max(map(abs, row))]
    report.case(f"loss and logits of {case}, at {ranks or 1} ranks", problems, result)
    prompt = ",".join(map(str, want["greedy"]["prompt"]))
    result = run([train, "--sample", folder, "--prompt-ids", prompt, "--print-ids", "--temperature", "0", "--tokens", "16"])
    drawn = [int(x) for x in re.findall(r"\d+", result.out)]
    report.case(f"greedy continuation of {case}", [] if drawn == want["greedy"]["next16"] else [f"drawn {drawn}"], result)


def inference_cases(train, work, report):
    for case in ("mistral-window", "olmo2", "smollm3", "gemma3"):
        answers(train, work, report, case, 3 if case == "mistral-window" else None)
    for case, changes, loss in EVALUATED:
        evaluates(train, report, f"{case} with {json.dumps(changes)}", copied(work, case, lambda config: config.update(changes)), loss)


def in_and_out(train, work, report, case):
    to = work / "exported" / case
    result = run([train, "--export", to, CASES / case])
    problems = [] if result.code == 0 else ["it failed"]
    for name in ("model.safetensors", "generation_config.json"):
        wanted = CASES / case / name  # one that lies in several files has the same tensors in one
        if wanted.exists():
            same = (to / name).exists() and (to / name).read_bytes() == wanted.read_bytes()
        else:
            same = read_all(to) == read_all(CASES / case)
        problems += [] if same else [f"{name} differs"]
    same = (to / "config.json").exists() and json.loads((to / "config.json").read_text()) == json.loads((CASES / case / "config.json").read_text())
    report.case(f"{case} in and out", problems + ([] if same else ["config.json says something else"]), result)


def export_cases(train, work, report):
    for case in FAMILIES:
        in_and_out(train, work, report, case)

    half, again = work / "half", work / "again"
    first, second = run([train, "--export", half, CASES / "gpt2", "--dtype", "bf16"]), run([train, "--export", again, half, "--dtype", "bf16"])
    tensors = read_tensors(half / "model.safetensors")
    problems = [] if {t[0] for t in tensors.values()} == {"BF16"} else ["not all is BF16"]
    problems += [] if (again / "model.safetensors").read_bytes() == (half / "model.safetensors").read_bytes() else ["the second differs from the first"]
    problems += [] if json.loads((again / "config.json").read_text())["dtype"] == "bfloat16" else ["config.json does not say so"]
    report.case("bf16 out, in and out", problems, second if first.code == 0 else first)

    shutil.rmtree(work / "out", ignore_errors=True)
    result = run([train, configure(work, CASES / "qwen2"), "--set", f"run.export={work / 'end'}", "--set", "checkpoint.every=5"], 2)
    problems = [] if (work / "end" / "model.safetensors").exists() else ["nothing was exported at the end"]
    for name in ("out", "out/checkpoints/step-5", "run.toml"):
        to = work / ("of-" + name.replace("/", "-"))
        one = run([train, "--export", to, work / name])
        same = one.code == 0 and (to / "model.safetensors").read_bytes() == (work / "end" / "model.safetensors").read_bytes()
        problems += [] if same else [f"that of {name} differs: {one}"]
    report.case("export at a run's end, of the run, its checkpoint, its configuration", problems, result)
    result = run([train, "--export", work / "end", work / "out"])
    report.case("a folder that holds something is refused", [] if result.code == CANNOT_CREATE else [f"code {result.code}"], result)
    link_cases(train, work, report)


def link_cases(train, work, report):
    """A tokenizer file that is a link out of the model's folder is not copied; one to the blobs of a cache is."""
    (work / "secret").write_text("a secret")
    snapshot = work / "cache" / "snapshots" / "1"
    shutil.copytree(CASES / "gpt2", snapshot)
    (work / "cache" / "blobs").mkdir()
    (work / "cache" / "blobs" / "1").write_text("{}")
    (snapshot / "tokenizer_config.json").symlink_to("../../blobs/1")
    result = run([train, "--export", work / "of-cache", snapshot])
    problems = [] if result.code == 0 and (work / "of-cache" / "tokenizer_config.json").read_text() == "{}" else ["not exported as it is"]
    report.case("a link to the blobs of a cache", problems, result)
    os.unlink(snapshot / "tokenizer_config.json")
    (snapshot / "tokenizer_config.json").symlink_to(work / "secret")
    for name, command in (("--export", [train, "--export", work / "of-link", snapshot]),
                          ("a run", [train, configure(work, snapshot, case="gpt2"), "--overwrite", "--set", f"run.export={work / 'of-link'}"])):
        result = run(command)
        problems = [] if result.code == 0 and "tokenizer_config.json is a link that leads out" in result.err else [f"code {result.code}"]
        problems += ["it was copied"] if (work / "of-link" / "tokenizer_config.json").exists() else []
        report.case(f"a link out of the folder, {name}", problems, result)
        shutil.rmtree(work / "of-link", ignore_errors=True)


def resume_case(train, work, report):
    folder = copied(work, "gpt2")
    shutil.rmtree(work / "out", ignore_errors=True)
    config = configure(work, folder, case="gpt2")
    first = run([train, config, "--set", "train.steps=3", "--set", "checkpoint.every=3"])
    shutil.rmtree(folder)
    result = run([train, work / "out" / "config.toml", "--resume", "latest", "--set", "train.steps=5"])
    report.case("a run goes on without the folder", compare(result, work / "out", "gpt2") if first.code == 0 else ["it did not begin"], result)
    shutil.rmtree(work / "out" / "checkpoints" / "step-5", ignore_errors=True)
    result = run([train, config, "--resume", "latest", "--set", "train.steps=5"])
    report.case("and by the configuration that it began with", compare(result, work / "out", "gpt2"), result)


def refused(train, work, report, name, folder, words, code=MODEL, **sets):
    shutil.rmtree(work / "out", ignore_errors=True)
    options = sum((["--set", f"{key.replace('__', '.')}={value}"] for key, value in sets.items()), [])
    result = run([train, configure(work, folder, case="gpt2"), *options])
    problems = [] if result.code == code else [f"code {result.code}, wanted {code}"]
    problems += [f"the line lacks {word!r}" for word in words if word not in result.last_error_line()]
    problems += ["a run directory was made"] if (work / "out").exists() else []
    report.case(name, problems, result)


def dropout_cases(train, work, report):
    def as_published(config):
        config.update(embd_pdrop=0.1, attn_pdrop=0.1, resid_pdrop=0.1)

    folder = copied(work, "gpt2", as_published)
    trains(train, work, report, "gpt2", name="dropout that is not wanted", folder=folder, model__dropout=0)
    shutil.rmtree(work / "out", ignore_errors=True)
    result = run([train, configure(work, folder, case="gpt2"), "--set", "run.export=" + str(work / "out" / "tuned")], 2)
    expected = json.loads((CASES / "gpt2" / "expected.json").read_text())["five_adamw_steps"]["losses"]
    losses = [m["loss"] for m in harness.read_metrics(work / "out")] if result.code == 0 else []
    far = [abs(got - wanted) for got, wanted in zip(losses, expected)]
    problems = [] if len(losses) == 5 and min(far) > 1e-4 and max(far) < 0.5 else [f"losses {losses}, without dropout {expected}"]
    tuned = json.loads((work / "out" / "tuned" / "config.json").read_text()) if result.code == 0 else {}
    problems += [f"{key} is {tuned.get(key)}" for key in ("embd_pdrop", "attn_pdrop", "resid_pdrop") if tuned.get(key) != 0.1]
    report.case("five steps of gpt2 with the dropout of its config.json", problems, result)
    refused(train, work, report, "a dropout of 1", copied(work, "gpt2", lambda config: config.update(embd_pdrop=1.0)), ["embd_pdrop"])


def refusal_cases(train, work, report):
    settings = [("gpt2", "scale_attn_by_inverse_layer_idx", True), ("gpt2", "scale_attn_weights", False), ("gpt2", "activation_function", "relu"),
                ("gpt2", "add_cross_attention", True), ("qwen3", "attention_bias", True), ("qwen3", "hidden_act", "gelu"),
                ("llama3-rope", "mlp_bias", True), ("llama3-rope", "attention_dropout", 0.1), ("llama3-rope", "quantization_config", {"bits": 4}),
                ("llama3-rope", "partial_rotary_factor", 0.5), ("llama3-rope", "num_local_experts", 4), ("phi3", "resid_pdrop", 0.1),
                ("smollm3", "no_rope_layers", [1, 0]), ("gemma3", "query_pre_attn_scalar", 16), ("gemma3", "hidden_activation", "gelu"), ("gemma3", "final_logit_softcapping", 30.0),
                ("qwen2", "layer_types", ["full_attention", "sliding_attention"])]
    for case, key, value in settings:
        refused(train, work, report, f"{case} with {key} = {value}", copied(work, case, lambda config: config.update({key: value})), [key])
    rope = {"rope_type": "longrope", "factor": 4.0, "rope_theta": 1e4}
    refused(train, work, report, "another kind of positions", copied(work, "qwen2", lambda c: c.update(rope_parameters=rope)), ["rope_type", "longrope"])
    for case, changes, words in (
        ("qwen3", {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope_scaling.rope_type"),  # goes before rope_parameters
        ("llama", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, "rope_scaling.type"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "rope_parameters.factor"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor is missing"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}}, "low_freq_factor is missing"),
        ("llama3-rope", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}}, "low_freq_factor"),
        ("llama", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"), ("llama", {"layer_types": ["full_attention"]}, "layer_types"),
        ("llama", {"num_hidden_layers": 2**31}, "model.layers"), ("llama", {"hidden_size": 2**31}, "model.width"),
        ("llama", {"num_attention_heads": 7}, "does not divide model.heads 7"), ("llama", {"num_key_value_heads": 3}, "model.kv_heads 3 does not divide"),
        ("llama", {"rms_norm_eps": -1.0}, "model.norm_eps"), ("llama", {"rope_parameters": {"rope_theta": 0}}, "model.rotary_base"),
        ("llama", {"pad_token_id": 320}, "pad_token_id = 320"), ("qwen2", {"pad_token_id": -321}, "pad_token_id"), ("qwen3", {"pad_token_id": "0"}, "pad_token_id"),
        ("llama", {"is_causal": False}, "is_causal"), ("gpt2", {"is_causal": False}, "is_causal"), ("llama", {"model_type": "qwen2"}, "model_type"),
    ):
        folder = copied(work, case, lambda config: config.update(changes))
        refused(train, work, report, f"{case} with {json.dumps(changes)}", folder, [words])
    refused(train, work, report, "an unknown architecture", copied(work, "qwen2", lambda c: c.update(architectures=["BertModel"])), ["BertModel", "Qwen2"])
    refused(train, work, report, "a width that is no number", copied(work, "qwen2", lambda c: c.update(hidden_size="64")), ["hidden_size"])
    refused(train, work, report, "no folder", work / "none", ["there is no such folder"])

    def damaged(tensors):
        return {("x" + name if ".1." in name else name): tensor for name, tensor in tensors.items()}

    refused(train, work, report, "missing and extra tensors", copied(work, "gpt2", None, damaged),
            ["24 tensors: missing transformer.h.1.ln_1.weight, transformer.h.1.ln_1.bias, transformer.h.1."])
    wide = copied(work, "qwen2", lambda config: config.update(intermediate_size=192))
    refused(train, work, report, "another shape", wide, ["(160, 64), not (192, 64)"])

    def as_integers(tensors):
        tensors["transformer.wpe.weight"] = ("I32", *tensors["transformer.wpe.weight"][1:])

    refused(train, work, report, "integers", copied(work, "gpt2", None, as_integers), ["transformer.wpe.weight is I32"])
    refused(train, work, report, "a key that contradicts", CASES / "gpt2", ["model.width = 32 contradicts model.path, where it is 64"], CONFIG, model__width=32)
    trains(train, work, report, "gpt2", name="keys that say the same", model__width=64, model__family='"gpt2"', model__vocab=320)


def main():
    train, is_long = pathlib.Path(sys.argv[1]).resolve(), "--long" in sys.argv
    report = harness.Report()
    with tempfile.TemporaryDirectory() as place:
        work = pathlib.Path(place)
        training_cases(train, work, report, is_long)
        padding_cases(train, work, report)
        tensor_cases(train, work, report)
        inference_cases(train, work, report)
        export_cases(train, work, report)
        resume_case(train, work, report)
        dropout_cases(train, work, report)
        refusal_cases(train, work, report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
