#!/usr/bin/env python3
"""The tokenizer of a folder in the GGUF file that --export makes of it: tokens, kinds, scores or merges, and what stands around a text. Weights and sizes are
compared in gguf_peers_test.py. Usage: gguf_test.py TRAIN"""

import json
import pathlib
import struct
import sys
import tempfile

import gguf_file
import harness
from huggingface_test import CONFIG, MODEL, copied, read_tensors, run

TOKENIZERS = harness.ROOT / "tests" / "data" / "tokenizers"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)  # kinds of tokens


def piece(text, score, kind):
    """A piece of a SentencePiece model, as its file has it."""
    body = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
    return b"\x0a" + bytes([len(body)]) + body


def gguf_fields(train, work, config=(), **files):
    """The fields of a GGUF file of llama3-rope with these files beside it."""
    folder = copied(work, "llama3-rope", lambda c: c.update(config))
    for file, content in files.items():
        (folder / file.replace("__", ".")).write_bytes(content)
    (work / "model.gguf").unlink(missing_ok=True)
    result = run([train, "--export", work / "model.gguf", folder])
    return result, {k.removeprefix("tokenizer.ggml."): v for k, v in gguf_file.read_fields(work / "model.gguf")[0].items()} if result.code == 0 else {}


def is_like(fields, **wanted):
    return [f"{key} is {fields.get(key)}, not {value}" for key, value in wanted.items() if fields.get(key) != value]


def with_digits(tokenizer):
    """As SmolLM has it: digits one by one, then GPT-2's words."""
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, tokenizer["pre_tokenizer"]]}


def with_merges(tokenizer):
    tokenizer["model"]["ignore_merges"] = False


def pre_tokenizer_cases(train, work, report):
    """How words are cut is the tokenizer's, not the architecture's: the folder is a Llama's throughout."""
    problems = []
    for case, change, name in (("gpt2", None, "gpt-2"), ("gpt2", with_digits, "smollm"), ("llama3", None, "llama-bpe"), ("llama3", with_merges, "smaug-bpe"),
                               ("qwen2", None, "qwen2"), ("o200k", None, "gpt-4o"), ("llama2", None, "default")):
        tokenizer = json.loads((TOKENIZERS / case / "tokenizer.json").read_text())
        if change:
            change(tokenizer)
        result, fields = gguf_fields(train, work, tokenizer__json=json.dumps(tokenizer).encode())
        problems += is_like(fields, pre=name)
    report.case("the pre-tokenizer in GGUF is the tokenizer's", problems, result)
    tokenizer = json.loads((TOKENIZERS / "qwen2" / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\p{L}+|\\P{L}"
    result, _ = gguf_fields(train, work, tokenizer__json=json.dumps(tokenizer).encode())
    problems = [] if result.code == MODEL and "pre-tokenizer" in result.last_error_line() else [f"code {result.code}"]
    report.case("no GGUF with words that llama.cpp does not cut so", problems, result)


def special_token_cases(train, work, report):
    """Tokens with a part to play are named by the tokenizer's own files first; templates of chats go along."""
    level = (TOKENIZERS / "gpt2" / "tokenizer.json").read_bytes()
    tokens = {int(i): {"content": t, "special": True} for i, t in ((300, "<|im_end|>"), (320, "<|x|>"), (321, "<|y|>"))}
    config = {"eos_token": "<|im_end|>", "chat_template": "{{ a }}", "added_tokens_decoder": tokens}
    vocab = json.loads(level)
    vocab["model"]["vocab"] = {t: i for t, i in vocab["model"]["vocab"].items() if i < 300}
    vocab["model"]["merges"] = []
    files = {"tokenizer__json": json.dumps(vocab).encode(), "tokenizer_config__json": json.dumps(config).encode()}
    result, fields = gguf_fields(train, work, {"eos_token_id": 5, "bos_token_id": 6}, **files)
    problems = is_like(fields, eos_token_id=300, bos_token_id=6) + is_like(fields, **{"tokenizer.chat_template": "{{ a }}"})
    problems += [] if "<|x|> (320), <|y|> (321)" in result.err else ["the tokens that are left out are not named"]
    report.case("GGUF with the tokenizer's end token and chat template", problems, result)

    config["chat_template"] = [{"name": "default", "template": "d"}, {"name": "tool use", "template": "t"}]
    result, fields = gguf_fields(train, work, {"eos_token_id": [7, 8]}, **{**files, "tokenizer_config__json": json.dumps(config).encode()})
    problems = is_like(fields, **{"tokenizer.chat_template": "d", "tokenizer.chat_template.tool_use": "t", "tokenizer.chat_templates": ["tool_use"]})
    report.case("GGUF with chat templates by name", problems, result)
    mapped = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "!"}
    result, fields = gguf_fields(train, work, **{**files, "tokenizer_config__json": b'{"eos_token": "!"}', "special_tokens_map__json": json.dumps(mapped).encode(),
                                                 "added_tokens__json": b'{"<|im_end|>": 300}', "chat_template__jinja": b"j"})
    report.case("GGUF with special_tokens_map.json and added_tokens.json",
                is_like(fields, eos_token_id=300, bos_token_id=1, **{"tokenizer.chat_template": "j"}), result)


def export_cases(train, work, report):
    """What goes along with a folder: of a run from scratch the tokenizer that its data went through; no number becomes infinite."""
    tokenizer = work / "tokenizer"
    tokenizer.mkdir()
    level = json.loads((TOKENIZERS / "gpt2" / "tokenizer.json").read_text())
    (tokenizer / "tokenizer.json").write_text(json.dumps(level))
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"eos_token": "!", "chat_template": "t"}))
    (tokenizer / "additional_chat_templates").mkdir()
    (tokenizer / "additional_chat_templates" / "tool.jinja").write_text("u")
    (work / "text.txt").write_text("the day is over and the night is long " * 40)
    config = work / "scratch.toml"
    config.write_text(f"""model = {{family = "llama", layers = 1, heads = 2, width = 32, context = 16}}
data = {{train = "{work}/text.txt", tokenizer = "{tokenizer}"}}
train = {{steps = 1, global_batch = 2}}
run = {{dir = "{work}/run", sample_tokens = 0}}
""")
    result = run([train, config])
    folder = work / "scratch"
    if result.code == 0:
        result = run([train, "--export", folder, work / "run"])
    problems = [] if result.code == 0 else [f"code {result.code}"]
    if not problems:
        settings = json.loads((folder / "config.json").read_text())
        problems += [] if (settings["eos_token_id"], settings["bos_token_id"]) == (1, None) else ["other tokens end and begin a text"]
        names = ("tokenizer.json", "tokenizer_config.json", "additional_chat_templates/tool.jinja")
        problems += [f"no {name}" for name in names if not (folder / name).exists()]
    report.case("the tokenizer of a run from scratch goes along with its export", problems, result)
    result = run([train, "--export", work / "scratch.gguf", work / "run"])
    fields = gguf_file.read_fields(work / "scratch.gguf")[0] if result.code == 0 else {}
    wanted = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.pre": "gpt-2", "tokenizer.chat_template": "t", "tokenizer.chat_template.tool": "u"}
    report.case("and with its GGUF file, of any spelling", is_like(fields, **wanted), result)

    def large(tensors):
        name = next(iter(tensors))
        dtype, shape, values = tensors[name]
        tensors[name] = (dtype, shape, struct.pack("<f", 1e6) + values[4:])
    for out in ("half", "half.GGUF"):
        source = copied(work, "llama3-rope", change_tensors=large)
        result = run([train, "--export", work / out, source, "--dtype", "f16"])
        problems = [] if result.code == MODEL and "1000000 would be infinite as F16" in result.last_error_line() else [f"code {result.code}"]
        report.case(f"a number that f16 has not is refused, {out}", problems, result)


F32, F16, Q8_0, Q4_K, Q6_K = 0, 1, 8, 12, 14  # types of tensors


def trained(train, work, name, width, **lora):
    """A run of a few steps of a Llama of eight blocks whose rows have `width` numbers."""
    (work / "words.txt").write_text("the day is over and the night is long " * 40)
    config = work / f"{name}.toml"
    config.write_text(f"""model = {{family = "llama", layers = 8, heads = 2, width = {width}, hidden = {width}, context = 16, tied_head = false}}
data = {{train = "{work}/words.txt"}}
train = {{steps = {3 if lora else 1}, global_batch = 1}}
run = {{dir = "{work}/{name}", sample_tokens = 0}}
lora = {{{", ".join(f"{key} = {value}" for key, value in lora.items())}}}
""")
    return run([train, config])


def block_cases(train, work, report):
    """Which matrices have how many bits is llama.cpp's choice; a row that is no whole number of blocks gets a type with smaller ones."""
    trained(train, work, "wide", 256)
    six = {f"blk.{block}.{part}.weight" for block in (0, 3, 6, 7) for part in ("attn_v", "ffn_down")} | {"output.weight"}
    for spelled, number in (("q4_K_M", 15), ("Q6_k", 18)):
        out = work / f"{spelled}.gguf"
        result = run([train, "export", work / "wide", out, "--dtype", spelled])
        fields, tensors = gguf_file.read_fields(out) if result.code == 0 else ({}, {})
        wanted = {name: F32 if len(dims) == 1 else Q6_K if number == 18 or name in six else Q4_K for name, (dims, _) in tensors.items()}
        problems = is_like(fields, **{"general.file_type": number}) + is_like({name: kind for name, (_, kind) in tensors.items()}, **wanted)
        problems += [] if len(tensors) == 8 * 9 + 3 else [f"{len(tensors)} tensors"]
        report.case(f"the bits of each matrix in a {spelled} file", problems, result)
    for width, kind in ((32, Q8_0), (24, F16)):
        trained(train, work, f"narrow{width}", width)
        out = work / f"{width}.gguf"
        result = run([train, "export", work / f"narrow{width}", out, "--dtype", "q4_K_M"])
        kinds = {kind for dims, kind in gguf_file.read_fields(out)[1].values() if len(dims) == 2} if result.code == 0 else ()
        report.case(f"rows of {width} numbers are no block of 256", [] if kinds == {kind} else [f"the types are {kinds}"], result)
    result = run([train, "export", work / "wide", work / "folder", "--dtype", "q4_K_M"])
    report.case("a folder is not quantized", [] if result.code == CONFIG and "q4_K_M is for GGUF files alone" in result.last_error_line() else [str(result)], result)
    result = run([train, work / "wide.toml", "--overwrite", "--set", "run.export=" + str(work / "end.gguf"), "--set", "run.export_dtype=q6_K"])
    problems = [] if result.code == 0 and gguf_file.read_fields(work / "end.gguf")[0]["general.file_type"] == 18 else [str(result)]
    report.case("the end of a run writes a q6_K file", problems, result)


def adapter_cases(train, work, report):
    """An adapter's file has the numbers of peft's folder, rows of queries and keys where llama.cpp has them, and B as llama.cpp's scale wants it."""
    trained(train, work, "adapted", 32, rank=4, targets='"all-linear"', dropout=0.5, rslora="true", alpha=6, export=f'"{work}/own.gguf"')
    results = [run([train, "export", work / "adapted", work / name, "--adapter"]) for name in ("peft", "adapter.gguf")]
    problems = [f"code {result.code}" for result in results if result.code != 0]
    if not problems:
        fields, tensors = gguf_file.read_fields(work / "adapter.gguf")
        problems += is_like(fields, **{"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora", "adapter.lora.alpha": 6.0})
        problems += [] if len(tensors) == 8 * 7 * 2 else [f"{len(tensors)} tensors"]
        problems += [] if (work / "own.gguf").read_bytes() == (work / "adapter.gguf").read_bytes() else ["lora.export wrote another file"]
        peft = read_tensors(work / "peft" / "adapter_model.safetensors")
        names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj"}
        for ours, theirs in names.items():
            for part in "ab":
                numbers, dims = gguf_file.read_f32(work / "adapter.gguf", f"blk.5.{ours}.weight.lora_{part}")
                _, shape, data = peft[f"base_model.model.model.layers.5.{theirs}.lora_{part.upper()}.weight"]
                wanted = struct.unpack(f"<{len(data) // 4}f", data)
                if part == "b":
                    wanted = [2 * value for value in wanted]  # alpha / sqrt(4), where llama.cpp takes alpha / 4
                if part == "b" and ours in ("attn_q", "attn_k"):  # two heads of 16 rows, of which halves become pairs
                    rows = [wanted[row * 4:row * 4 + 4] for row in range(32)]
                    wanted = [value for head in range(2) for i in range(8) for half in range(2) for value in rows[head * 16 + half * 8 + i]]
                problems += [] if list(numbers) == list(wanted) and dims == shape[::-1] else [f"{ours} {part} has other numbers, or {dims} for {shape}"]
    report.case("an adapter as GGUF", problems, results[-1])
    trained(train, work, "saved", 32, rank=4, targets='"all-linear"', modules_to_save='["lm_head"]')
    result = run([train, "export", work / "saved", work / "saved.gguf", "--adapter"])
    problems = [] if result.code == MODEL and "no modules that were trained whole" in result.last_error_line() and not (work / "saved.gguf").exists() else [str(result)]
    report.case("no GGUF of an adapter beside modules that were trained whole", problems, result)


def numbers_of(tensors, name):
    _, shape, data = tensors[name]
    return struct.unpack(f"<{len(data) // 4}f", data), shape


def mixture_cases(train, work, report):
    """Experts are tensors of all, gates and others by themselves; Gemma's norms are those that llama.cpp multiplies with; positions that it has otherwise are refused."""
    def made(case, change=None):
        folder, out = copied(work, case, change), work / f"{case}.gguf"
        return run([train, "export", folder, out, "--dtype", "f32"]), out, read_tensors(folder / "model.safetensors")

    result, out, tensors = made("gpt-oss")
    problems = [] if result.code == 0 else [f"code {result.code}"]
    if not problems:
        experts, width, hidden, layer = 4, 64, 64, "model.layers.1."
        both, shape = numbers_of(tensors, layer + "mlp.experts.gate_up_proj")
        for first, part in enumerate(("gate", "up")):
            wanted = [both[(e * width + c) * 2 * hidden + 2 * i + first] for e in range(experts) for i in range(hidden) for c in range(width)]
            got, dims = gguf_file.read_f32(out, f"blk.1.ffn_{part}_exps.weight")
            problems += [] if list(got) == wanted and dims == [width, hidden, experts] else [f"{part}s have other numbers, or {dims}"]
            biases, _ = numbers_of(tensors, layer + "mlp.experts.gate_up_proj_bias")
            got, dims = gguf_file.read_f32(out, f"blk.1.ffn_{part}_exps.bias")
            problems += [] if list(got) == list(biases[first::2]) and dims == [hidden, experts] else [f"biases of {part}s are others, or {dims}"]
        for ours, theirs in (("attn_sinks.weight", "self_attn.sinks"), ("ffn_gate_inp.bias", "mlp.router.bias"), ("post_attention_norm.weight", "post_attention_layernorm.weight")):
            problems += [] if gguf_file.read_f32(out, f"blk.1.{ours}")[0] == numbers_of(tensors, layer + theirs)[0] else [f"{ours} has other numbers"]
        problems += is_like(gguf_file.read_fields(out)[0], **{"general.architecture": "gpt-oss", "gpt-oss.expert_count": 4, "gpt-oss.expert_used_count": 2, "gpt-oss.rope.scaling.type": "yarn"})
    report.case("gpt-oss as GGUF", problems, result)
    result, out, tensors = made("mixtral")
    wanted = [value for e in range(4) for value in numbers_of(tensors, f"model.layers.0.block_sparse_moe.experts.{e}.w3.weight")[0]]
    problems = [] if result.code == 0 and list(gguf_file.read_f32(out, "blk.0.ffn_up_exps.weight")[0]) == wanted else ["the experts have other numbers"]
    report.case("a mixture as GGUF", problems, result)
    result, out, tensors = made("gemma3", lambda config: config.update(layer_types=["sliding_attention"] * 3))
    pairs = zip(gguf_file.read_f32(out, "blk.2.post_ffw_norm.weight")[0], numbers_of(tensors, "model.layers.2.post_feedforward_layernorm.weight")[0], strict=True) if result.code == 0 else [(0, 0)]
    report.case("Gemma 3 as GGUF", [] if all(abs(a - b - 1) < 1e-6 for a, b in pairs) else ["norms are not about one"], result)
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    result, fields = gguf_fields(train, work, {"rope_parameters": yarn})
    report.case("YaRN as GGUF", is_like(fields, **{f"llama.rope.scaling.{key}": value for key, value in (("type", "yarn"), ("factor", 4.0), ("original_context_length", 64))}), result)
    for more, says in (({"truncate": False}, "model.rotary_truncate is false"), ({"beta_fast": 16}, "other than 1 and 32")):
        result, _ = gguf_fields(train, work, {"rope_parameters": {**yarn, **more}})
        problems = [] if result.code == MODEL and says in result.last_error_line() else [f"code {result.code}: {result.last_error_line()}"]
        report.case(f"no GGUF of YaRN with {more}", problems, result)


def gguf_cases(train, work, report):
    model = (TOKENIZERS / "sentencepiece" / "tokenizer.model").read_bytes()
    config = {"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": {"0": {"content": "<unk>", "special": True}}}
    result, fields = gguf_fields(train, work, tokenizer__model=model, tokenizer_config__json=json.dumps(config).encode())
    kinds, tokens, scores = fields.get("token_type", []), fields.get("tokens", []), fields.get("scores", [])
    problems = is_like(fields, model="llama", bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_bos_token=True, add_eos_token=False,
                       add_space_prefix=True, precompiled_charsmap=None)
    problems += [] if kinds == [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * 61 else [f"the kinds are {kinds[:4]}..."]
    problems += [] if tokens[:4] == ["<unk>", "<s>", "</s>", "<0x00>"] and len(set(tokens)) == 320 else [f"the tokens are {tokens[:4]}..."]
    problems += [] if scores[259:] == [-float(i) for i in range(61)] else [f"the scores are {scores[259:264]}..."]
    report.case("GGUF with a SentencePiece model", problems, result)

    kinds = ((b"<unk>", 0, UNKNOWN), (b"<s>", 0, CONTROL), (b"</s>", 0, CONTROL), (b"<x>", 0, USER), (b"a", -0.5, NORMAL))
    pieces = b"".join(piece(*each) for each in kinds)
    normalizer = b"\x1a\x04\x18\x00\x20\x00"  # neither a space before a text nor fewer of several
    result, fields = gguf_fields(train, work, {"pad_token_id": 3}, tokenizer__model=pieces + normalizer, added_tokens__json=b'{"<new>": 7}')
    problems = is_like(fields, model="t5", add_space_prefix=False, remove_extra_whitespaces=False, padding_token_id=3, add_bos_token=None)
    problems += [] if fields.get("token_type", [])[:8] == [UNKNOWN, CONTROL, CONTROL, USER, NORMAL, UNUSED, UNUSED, USER] else ["other kinds"]
    problems += [] if fields.get("tokens", [])[3:8] == ["<x>", "a", "[PAD5]", "[PAD6]", "<new>"] else ["other tokens"]
    report.case("GGUF with a unigram model and a token beside it", problems, result)
    for name, training, says in (("words", b"\x12\x02\x18\x03", "no tokenizer of this kind"), ("unigrams with bytes", b"\x12\x03\x98\x02\x01", ""),
                                 ("nothing", b"\x12", "tokenizer.model")):
        result, _ = gguf_fields(train, work, tokenizer__model=pieces + training)
        problems = [] if result.code == MODEL and says in result.last_error_line() and not (work / "model.gguf").exists() else [f"code {result.code}"]
        report.case(f"no GGUF with a SentencePiece model of {name}", problems, result)

    both = (TOKENIZERS / "llama2" / "tokenizer.json").read_bytes()
    result, fields = gguf_fields(train, work, tokenizer__json=both)
    problems = is_like(fields, model="llama", unknown_token_id=json.loads(both)["model"]["vocab"]["<unk>"], add_bos_token=True, add_eos_token=False)
    report.case("GGUF with a BPE that falls back to bytes", problems, result)
    texts = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "a", "b", "c", "abc", "ab", "ca"]
    bpe = {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>", "vocab": {text: i for i, text in enumerate(texts)}, "merges": ["c a", "a b", "ab c"]}
    result, fields = gguf_fields(train, work, tokenizer__json=json.dumps({"model": bpe, "post_processor": None}).encode())
    scores = dict(zip(texts, fields.get("scores", [])))
    problems = is_like(fields, add_bos_token=False)
    problems += [] if result.code == 0 and scores["ca"] > scores["ab"] > scores["abc"] > scores["a"] else ["the scores are not the order of the merges"]
    problems += [] if fields.get("token_type", [])[:2] == [UNKNOWN, BYTE] else ["other kinds"]
    report.case("GGUF with merges in another order than their tokens", problems, result)
    result, fields = gguf_fields(train, work, tokenizer__json=both, tokenizer__model=model)
    report.case("GGUF with tokenizer.json and tokenizer.model", is_like(fields, model="llama", add_space_prefix=True), result)
    level = (TOKENIZERS / "llama3" / "tokenizer.json").read_bytes()
    result, fields = gguf_fields(train, work, tokenizer__json=level, tokenizer__model=model)
    frame = json.loads(level)["post_processor"]
    problems = is_like(fields, model="gpt2", scores=None, add_bos_token="TemplateProcessing" in json.dumps(frame))
    report.case("GGUF with a byte-level tokenizer.json", problems, result)


def main():
    train = pathlib.Path(sys.argv[1]).resolve()
    report = harness.Report()
    with tempfile.TemporaryDirectory(prefix="gguf.") as work:
        gguf_cases(train, pathlib.Path(work), report)
        block_cases(train, pathlib.Path(work), report)
        adapter_cases(train, pathlib.Path(work), report)
        mixture_cases(train, pathlib.Path(work), report)
        pre_tokenizer_cases(train, pathlib.Path(work), report)
        special_token_cases(train, pathlib.Path(work), report)
        export_cases(train, pathlib.Path(work), report)
    return report.exit_code()


if __name__ == "__main__":
    sys.exit(main())
