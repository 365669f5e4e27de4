#!/usr/bin/env python3
"""GGUF files that --export writes are what PyPI's `gguf` reads: sizes, tokenizer, and every weight of a case, with the rows of queries and keys in
llama.cpp's order, where $ZSHARD_PEER_PYTHON (or this Python) has the package; exit 77 where not. Usage: gguf_peers_test.py TRAIN"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import harness

LIMIT_S = 120
CASES = harness.ROOT / "tests" / "data" / "huggingface"
TOKENIZERS = harness.ROOT / "tests" / "data" / "tokenizers"
SPARSE = "sparse"  # a mixture of Qwen3's, trained here, too
WIDE = "wide"  # trained here: the cases' rows are no blocks of 256
# Case, dtype, tokenizer, and how far a weight may be off, relative to the largest of its tensor.
RUNS = (("gpt2", "f32", "gpt2", 0), ("gpt2", "q8_0", None, 0.005), ("llama3-rope", "f16", "llama2", 0.0005), ("mistral-window", "bf16", None, 0.004),
        ("qwen2", "f32", "qwen2", 0), ("qwen3", "q8_0", None, 0.005), ("llama3-rope", "f32", "sentencepiece", 0),
        (WIDE, "q4_K_M", None, 0.08), (WIDE, "q6_K", None, 0.02), ("mixtral", "f32", None, 0), ("qwen2-moe", "f32", None, 0), ("olmoe", "q8_0", None, 0.005), ("gpt-oss", "f32", None, 0),
        ("gemma3", "f32", None, 1e-7), (SPARSE, "q4_K_M", None, 0.08))
# Changes of config.json by which llama.cpp has the case's model.
CHANGES = {"gemma3": {"layer_types": ["sliding_attention"] * 3}}
# Runs in the Python that has the package: the GGUF file, the case, the tolerance; prints what is wrong, a line each.
PEER = """
import json, pathlib, re, struct, sys
import gguf, numpy
reader, case, tolerance = gguf.GGUFReader(sys.argv[1]), pathlib.Path(sys.argv[2]), float(sys.argv[3])
config = json.loads((case / "config.json").read_text())
data = (case / "model.safetensors").read_bytes()
(length,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + length])
header.pop("__metadata__")
wanted = {name: numpy.frombuffer(data, numpy.float32, offset=8 + length + t["data_offsets"][0], count=int(numpy.prod(t["shape"]))).reshape(t["shape"])
          for name, t in header.items()}
fields = {name: field.contents() for name, field in reader.fields.items()}
arch = fields["general.architecture"]
model = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
blocks = config.get("n_layer", config.get("num_hidden_layers"))
names = gguf.get_tensor_name_map(model, blocks)
def fail(*words): print(*words)
for name in list(wanted):  # experts one by one, or transposed with gates and others alternately, are tensors of all
    one = re.fullmatch(r"(.*[.]experts)[.](\\d+)[.](\\w+)[.]weight", name)
    if one and one[2] == "0":
        all = [wanted.pop(f"{one[1]}.{e}.{one[3]}.weight") for e in range(config.get("num_local_experts") or config["num_experts"])]
        wanted[f"{one[1]}.{one[3]}.weight"] = numpy.stack(all)
    elif name.endswith("shared_expert_gate.weight"): wanted[name] = wanted[name][0]
    elif "gate_up_proj" in name:
        values = wanted.pop(name)
        for i, part in enumerate(("gate_proj", "up_proj")):
            half = values[..., i::2]
            wanted[name.replace("gate_up_proj_bias", part + ".bias").replace("gate_up_proj", part + ".weight")] = half if half.ndim == 2 else half.swapaxes(1, 2)
    elif name.endswith("experts.down_proj"): wanted[name + ".weight"] = wanted.pop(name).swapaxes(1, 2)
    elif name.endswith("down_proj_bias"): wanted[name.replace("_bias", ".bias")] = wanted.pop(name)
    elif name.endswith("self_attn.sinks"): wanted[name + ".weight"] = wanted.pop(name)
    elif arch == "gemma3" and name.endswith("norm.weight"): wanted[name] = wanted[name] + 1
counts = {"expert_count": "num_local_experts" if arch in ("llama", "gpt-oss") else "num_experts", "expert_used_count": "num_experts_per_tok", "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
          "attention.sliding_window": "sliding_window"}
for key, setting in counts.items():
    if config.get(setting) and fields.get(f"{arch}.{key}") != config[setting]: fail(key, "is", fields.get(f"{arch}.{key}"), "not", config[setting])
if arch == "gpt-oss" and (fields["gpt-oss.rope.scaling.type"], fields["gpt-oss.rope.scaling.original_context_length"]) != ("yarn", 4096): fail("no yarn")
for key, value in ((f"{arch}.block_count", blocks), (f"{arch}.vocab_size", config["vocab_size"])):
    if fields.get(key) != value: fail(key, "is", fields.get(key), "not", value)
tensors, kinds = {t.name: t for t in reader.tensors}, {t.name: t.tensor_type for t in reader.tensors}
for name, values in wanted.items():
    ours = names.get_name(name, (".weight", ".bias"))
    if ours not in tensors: fail(name, "is missing as", ours); continue
    if arch == "gpt2" and re.search(r"(c_attn|c_proj|c_fc).weight", name): values = values.T
    heads = {"q": "num_attention_heads", "k": "num_key_value_heads"}.get((re.search(r"self_attn.([qk])_proj", name) or [0, 0])[1])
    if arch == "llama" and heads:
        n = config[heads]
        values = values.reshape(n, 2, values.shape[0] // n // 2, -1).swapaxes(1, 2).reshape(values.shape)
    got = gguf.dequantize(tensors.pop(ours).data, kinds[ours])
    off = numpy.abs(got.astype(numpy.float64) - values).max() / numpy.abs(values).max() if got.shape == values.shape else numpy.inf
    if not off <= tolerance: fail(name, "is off by", off, got.shape, values.shape)
rope = tensors.pop("rope_freqs.weight", None)
for name in tensors: fail(name, "is of no use")
if "llama3" in json.dumps(config):
    p = config["rope_parameters"]
    wave = 2 * numpy.pi * p["rope_theta"] ** (numpy.arange(0, 16, 2) / 16)
    low, high, old = p["low_freq_factor"], p["high_freq_factor"], p["original_max_position_embeddings"]
    smooth = (old / wave - low) / (high - low)
    factors = numpy.where(wave < old / high, 1, numpy.where(wave > old / low, p["factor"], 1 / ((1 - smooth) / p["factor"] + smooth)))
    if rope is None or not numpy.allclose(rope.data, factors, rtol=1e-6): fail("the factors of positions are", rope and rope.data, "not", factors)
tokenizer, pieces = case / "tokenizer.json", case / "tokenizer.model"
if pieces.exists():
    import sentencepiece
    model = sentencepiece.SentencePieceProcessor(model_file=str(pieces))
    kinds = {2: model.is_unknown, 3: model.is_control, 5: model.is_unused, 6: model.is_byte}
    for id in range(config["vocab_size"]):
        kind = next((kind for kind, has in kinds.items() if has(id)), 1)
        wanted = (model.id_to_piece(id), model.get_score(id), kind)
        got = tuple(fields["tokenizer.ggml." + key][id] for key in ("tokens", "scores", "token_type"))
        if got != wanted: fail("token", id, "is", got, "not", wanted)
    if fields["tokenizer.ggml.model"] != "llama": fail("the tokenizer is", fields["tokenizer.ggml.model"])
elif tokenizer.exists():
    vocab = json.loads(tokenizer.read_text())["model"]["vocab"]
    tokens = fields["tokenizer.ggml.tokens"]
    if len(tokens) != config["vocab_size"]: fail(len(tokens), "tokens")
    differ = [text for text, id in vocab.items() if id < len(tokens) and tokens[id] != text]
    if differ: fail(len(differ), "tokens differ, the first", differ[0])
    if len(fields["tokenizer.ggml.token_type"]) != len(tokens): fail("kinds are missing")
    if fields["tokenizer.ggml.model"] == "gpt2" and not fields["tokenizer.ggml.merges"]: fail("merges are missing")
elif fields["tokenizer.ggml.model"] != "none": fail("there is a tokenizer from nowhere")
"""


def train_wide(train, work, folder, family="llama", more=""):
    """A folder, as the cases are, of a model whose rows are 256 numbers."""
    (work / "words.txt").write_text("the day is over and the night is long " * 40)
    (work / "wide.toml").write_text(f"""model = {{family = "{family}", layers = 8, heads = 2, width = 256, hidden = 256, context = 16, tied_head = false{more}}}
data = {{train = "{work}/words.txt"}}
train = {{steps = 1, global_batch = 1}}
run = {{dir = "{work}/run", sample_tokens = 0, export = "{folder}"}}
""")
    harness.run([train, work / "wide.toml", "--overwrite"], LIMIT_S)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    python = os.environ.get("ZSHARD_PEER_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import gguf, numpy, sentencepiece"], capture_output=True, timeout=LIMIT_S).returncode != 0:
        print(f"skipped: {python} has no gguf and sentencepiece (pip install gguf sentencepiece, and ZSHARD_PEER_PYTHON)")
        return harness.SKIP
    report = harness.Report()
    with tempfile.TemporaryDirectory() as place:
        for case, dtype, tokenizer, tolerance in RUNS:
            folder, out = pathlib.Path(place, case), pathlib.Path(place, f"{case}-{dtype}.gguf")
            if case == WIDE and not folder.exists():
                train_wide(train, pathlib.Path(place), folder)
            elif case == SPARSE:
                train_wide(train, pathlib.Path(place), folder, "qwen3_moe", ", experts = 4, experts_per_token = 2")
            elif case != WIDE:
                shutil.copytree(CASES / case, folder, dirs_exist_ok=True)
                settings = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps({**settings, **CHANGES.get(case, {})}))
            if tokenizer:
                for file in ("tokenizer.json", "tokenizer.model"):
                    if (TOKENIZERS / tokenizer / file).exists():
                        shutil.copy(TOKENIZERS / tokenizer / file, folder)
                    else:
                        (folder / file).unlink(missing_ok=True)
            result = harness.run([train, "--export", out, folder, "--dtype", dtype], LIMIT_S)
            peer = subprocess.run([python, "-c", PEER, out, folder, str(tolerance)], capture_output=True, text=True, timeout=LIMIT_S)
            problems = peer.stdout.splitlines()[:5] + ([peer.stderr[-600:]] if peer.returncode else [])
            report.case(f"{case} as {dtype}", problems, result)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
