"""The archive that tests/gpu/drill runs on a bare GPU machine: programs, stripped, with the libraries that they load, Open MPI, data, and the
losses of this machine's CPU. Nothing is compiled here or there; tests/gpu/bundle --prebuilt says how it is called."""

import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import drill_plan
import losses_test
import packing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "train" / "program"))
import tiny_run  # noqa: E402

NAME = "drill.tar.xz"
LIMIT_BYTES = 45 << 20
LIMIT_S = 3600  # for the losses of one reference
OPEN_MPI = ("libopenmpi3", "openmpi-bin", "openmpi-common", "libpmix2")
# The C library, which goes with the machine's loader. The C++ library is brought along, for a machine that has none or an older one.
PART_OF_THE_MACHINE = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|anl|nsl))\.so")
COMPILERS_OWN = re.compile(r"lib(stdc\+\+|gcc_s|gomp)\.so")


def find_programs(build, plan):
    found = {}
    steps = [step for part in plan["parts"].values() for step in part]
    for name in sorted({step["program"] for step in steps if "program" in step} | {"train"}):
        places = [path for path in [build / name, *build.glob(f"tests/*/{name}")] if path.is_file()]
        if not places:
            packing.die(f"{build} has no {name}: build it there, with -Dcuda=enabled")
        found[name] = places[0]
    return found


def pack_programs(folder, programs):
    """Them, Open MPI, and what both load; the C++ library apart from the rest."""
    files = packing.wanted_files({name: packing.PACKAGES[name] for name in OPEN_MPI})
    libraries = packing.needed_libraries([*files, *(str(path)[1:] for path in programs.values())], PART_OF_THE_MACHINE)
    compilers = {path for path in libraries if COMPILERS_OWN.match(pathlib.Path(path).name)}
    packing.pack_all(folder, files, libraries - compilers)
    for place, paths in (("compiler", compilers), ("programs", programs.values())):
        (folder / place).mkdir()
        for path in paths:
            shutil.copy(path, folder / place)
    for name in programs:
        packing.output_of("strip", str(folder / "programs" / name))


def write_data(folder, plan):
    """Whatever the references name."""
    folder.mkdir()
    wanted = {reference[key] for reference in plan["references"].values() for key in ("config", "corpus")}
    if wanted & {drill_plan.KJV_CORPUS, drill_plan.WORDS}:
        text = packing.corpus()
        (folder / drill_plan.KJV_CORPUS).write_text(text)
        tiny_run.write_uint16_tokens(folder / drill_plan.WORDS, losses_test.word_tokens(text[:2_000_000]))
    shutil.copy(ROOT / "model" / "configs" / "kjv-tiny.toml", folder)
    (folder / "gpt2-124M.toml").write_text(losses_test.GPT2_124M)
    tiny = tiny_run.write_files(folder)  # the archive's paths are other ones, and given on the command line
    tiny.write_text(tiny.read_text().replace("global_batch = 24", "global_batch = 2"))


def losses_of_cpu(train, data, reference):
    with tempfile.TemporaryDirectory() as place:
        out = pathlib.Path(place, "out")
        words = losses_test.command(train, data / reference["config"], out, data / reference["corpus"], reference["dtype"], "cpu", reference["steps"])
        done = subprocess.run([str(word) for word in words], cwd=place, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
        if done.returncode != 0:
            packing.die(f"the losses of {reference['config']} on the CPU: exit code {done.returncode}: {done.stderr.strip()}")
        found = losses_test.losses(out)
    problems = losses_test.differences(found, found, 0, reference["steps"])
    if problems:
        packing.die(f"the losses of {reference['config']} on the CPU: {problems[0]}")
    return found


def add_losses(plan, train, data, known_path):
    """To each reference. They are kept in `known_path` for the next archive of the same program."""
    known = json.loads(known_path.read_text()) if known_path.is_file() else {}
    for name, reference in plan["references"].items():
        key = hashlib.sha256(train.read_bytes())
        for part in (data / reference["config"], data / reference["corpus"]):
            key.update(part.read_bytes())
        key.update(json.dumps(reference).encode())
        if key.hexdigest() not in known:
            print(f"bundle: {name}: {reference['steps']} steps on the CPU", flush=True)
            known[key.hexdigest()] = losses_of_cpu(train, data, reference)
            known_path.write_text(json.dumps(known))
        reference["losses"] = known[key.hexdigest()]


def make(folder, build, plan_name):
    plan = drill_plan.PLANS[plan_name]()
    programs = find_programs(build.resolve(), plan)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        packed = pathlib.Path(place, "drill")
        pack_programs(packed, programs)
        write_data(packed / "data", plan)
        add_losses(plan, programs["train"], packed / "data", folder / "losses.json")
        (packed / "plan.json").write_text(json.dumps(plan, indent=1))
        with tarfile.open(folder / NAME, "w:xz", preset=6) as archive:
            archive.add(packed, arcname="drill")
    size = (folder / NAME).stat().st_size
    if size > LIMIT_BYTES:
        packing.die(f"{folder / NAME} has {size} bytes, more than {LIMIT_BYTES}")
    print(f"bundle: {folder / NAME}, {size / 2**20:.1f} MiB; there: tests/gpu/drill --out DIR")
