"""A run small enough to be started dozens of times in a test: a two-block model, a corpus of a few kilobytes."""

import pathlib
import struct

CONFIG = """\
name = "tiny-run"
[model]
layers = 2
heads = 2
width = 32
context = 16
[data]
train = "{corpus}"
[train]
steps = 3
global_batch = 24
micro_batch = 1
lr = 1e-3
warmup = 1
[run]
dir = "{run_dir}"
sample_tokens = 8
"""


FOLDER_CONFIG = """\
[model]
path = "{folder}"
[data]
kind = "tokens"
train = "{tokens}"
validation_fraction = 0
[train]
steps = 5
global_batch = 4
sequence = 64
lr = {lr}
weight_decay = 0.1
schedule = "constant"
[run]
dir = "{run_dir}"
"""


def write_folder_config(work, folder, tokens, lr, run_dir="out"):
    """Five steps of the model in `folder` on a file of tokens, as the cases in tests/data have them. Returns the configuration's path."""
    path = work / "run.toml"
    path.write_text(FOLDER_CONFIG.format(folder=folder, tokens=tokens, lr=lr, run_dir=work / run_dir))
    return path


def corpus_text(size=6000):
    """Text with some structure, the same every time."""
    words = "the sun rises over a quiet field and the river carries it down to the sea".split()
    text, state = [], 12345
    while sum(map(len, text)) < size:
        state = (1103515245 * state + 12345) % 2**31
        text.append(words[state // 65536 % len(words)] + (".\n" if state // 1024 % 11 == 0 else " "))
    return "".join(text)[:size]


def write_files(folder, run_dir="out"):
    """Writes corpus.txt and tiny.toml into the folder; returns the configuration's path. The run directory is not made."""
    folder = pathlib.Path(folder)
    corpus = folder / "corpus.txt"
    corpus.write_text(corpus_text())
    path = folder / "tiny.toml"
    path.write_text(CONFIG.format(corpus=corpus, run_dir=folder / run_dir))
    return path


def write_uint16_tokens(path, tokens):
    """nanoGPT's format: nothing but the tokens."""
    pathlib.Path(path).write_bytes(struct.pack(f"<{len(tokens)}H", *tokens))


def write_llmc_tokens(path, tokens, magic=20240520, version=1, count=None):
    """llm.c's format: 256 int32, of which magic, version and the number of tokens; then the tokens."""
    header = [magic, version, len(tokens) if count is None else count] + [0] * 253
    pathlib.Path(path).write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens))


def options(**values):
    """train.steps=4 ... from train__steps=4 ..., as a list of --set arguments."""
    arguments = []
    for key, value in values.items():
        text = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
        arguments += ["--set", f"{key.replace('__', '.')}={text}"]
    return arguments
