#!/usr/bin/env python3
"""Reads the #include lines of every source file against the table of who may include whom (docs/architecture.md).
Usage: layering_test.py SOURCE_ROOT   (or --self-test)"""

import pathlib
import re
import sys
import tempfile

# Folder -> the folders it may include, itself included. The order is the order of the layers.
BASE, DEVICE, KERNELS, COMM = "runtime/base", "runtime/device", "kernels", "comm"
TENSOR, SHARD, MODEL = "runtime/tensor", "runtime/shard", "model"
ALLOWED = {
    BASE: {BASE},
    DEVICE: {BASE, DEVICE},
    KERNELS: {BASE, DEVICE, KERNELS},
    COMM: {BASE, DEVICE, COMM},
    TENSOR: {BASE, DEVICE, KERNELS, TENSOR},
    SHARD: {BASE, DEVICE, KERNELS, COMM, TENSOR, SHARD},
    MODEL: {BASE, DEVICE, KERNELS, COMM, TENSOR, SHARD, MODEL},
}
# Rooms: folders below a folder of that table, from the top down. "a > b, c": a may include b, c and what stands to the right of them, b and c
# not each other. A room's files are those below it too; "." are the files of the folder itself. docs/architecture.md shows these lines.
ROOMS = {
    MODEL: "python > train > lora, zshard > families, datasets > weights, job > sharding, data > nn, chat > tokenizer > json",
    "model/train": "cli > trainer > report, inference > run_dir > plan > session > rank > config, profile",
    SHARD: "checkpoint > optimizers, runtime > execute > placement, offload > schedule, collectives, experts",
    COMM: "worlds > shm, mpi, nccl > direct, gpu > . > health > host",
    KERNELS: "cpu, cuda > .",
    TENSOR: "ops > .",
}
LEVELS = {folder: {room: level for level, rooms in enumerate(line.split(" > ")) for room in rooms.split(", ")} for folder, line in ROOMS.items()}
ARCHITECTURE = "docs/architecture.md"
FREE = ("tests", "bench")
# Libraries that stay behind one layer, so that another version or none of them touches one folder.
LIBRARIES = {
    "mpi.h": {COMM},
    "oneapi/": {KERNELS},
    "dnnl": {KERNELS},
    "omp.h": {DEVICE, KERNELS, MODEL},
    "hwloc": {DEVICE, MODEL},
    "toml++/": {MODEL},
    "CLI/": {MODEL},
    "nlohmann/": {SHARD, MODEL},
    "pybind11/": {MODEL},
    "pcre2": {MODEL},
    "utf8proc": {MODEL},
    "sentencepiece": {MODEL},
    "catch2/": set(),
}
# base builds on the standard library, fmt, and what the operating system itself offers.
BASE_LIBRARIES = re.compile(r"^([a-z_0-9]+|c[a-z]+|fmt/.*|sys/.*|linux/.*|dirent\.h|unistd\.h|fcntl\.h|sched\.h|pthread\.h|immintrin\.h)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:(<)([^>]+)>|"([^"]+)"|(\S.*))')
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".cuh"}


def folder_of(path):
    parts = path.split("/")
    two = "/".join(parts[:2])
    return two if two in ALLOWED else parts[0]


def room_of(path, folder):
    """Of a file below `folder`: the name of its room."""
    return path[len(folder) + 1:].rpartition("/")[0].partition("/")[0] or "."


def check_rooms(name, target):
    """A problem where both files are below a folder with rooms, and the order of its rooms forbids the include."""
    for folder, levels in LEVELS.items():
        if not (name.startswith(folder + "/") and target.startswith(folder + "/")):
            continue
        here, there = room_of(name, folder), room_of(target, folder)
        missing = [room for room in (here, there) if room not in levels]
        if missing:
            return f"{folder}/{missing[0]} is not in the table of rooms"
        if here != there and levels[here] >= levels[there]:
            return f"{folder}: {here} may not include {there} (\"{target}\"): {ROOMS[folder]}"
    return None


def included_rooms(folder, room, graph):
    """The rooms of `folder` that files of `room` include."""
    return {room_of(target, folder) for name, targets in graph.items() for target in targets
            if name.startswith(folder + "/") and target.startswith(folder + "/") and room_of(name, folder) == room} - {room}


def check_heads(root, graph):
    """Each room's build file begins with at most five lines: what lives there, and which rooms beside it are included: those that are."""
    for folder, levels in LEVELS.items():
        for room in sorted(set(levels) - {"."}):
            name = f"{folder}/{room}/meson.build"
            if not (root / name).is_file():
                if any(path.suffix == ".cpp" for path in (root / folder / room).glob("*")):
                    yield f"{name}:1: the room has no build file"
                continue
            head = [line for line in (root / name).read_text().split("\n\n")[0].splitlines() if line.startswith("#")]
            included = sorted(included_rooms(folder, room, graph), key=lambda other: (levels[other], other))
            last = f"# Includes {', '.join(folder if other == '.' else other for other in included) or 'no room beside it'}."
            if not 2 <= len(head) <= 5 or head[-1] != last:
                yield f"{name}:1: the head has at most five lines of comment, the last of which is: {last}"


def check_page(root):
    """The page of the architecture shows every line of the table."""
    text = (root / ARCHITECTURE).read_text() if (root / ARCHITECTURE).is_file() else ""
    for folder, line in ROOMS.items():
        row = f"| `{folder}/` | {line.replace('.', 'its own files')} |"
        if row not in text:
            yield f"{ARCHITECTURE}:1: the line of {folder} is not there, or another: {row}"


def sources(root):
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix in SUFFIXES and not name.startswith((".", "build", "docs/", "runs/")):
            yield name


def check_line(root, name, folder, line):
    match = INCLUDE.match(line)
    if not match:
        return None
    angle, system, quoted, other = match.groups()
    if other:
        return f"an include through a macro cannot be checked: {other}"
    if angle:
        for library, allowed in LIBRARIES.items():
            if system.startswith(library) and folder not in allowed:
                return f"{folder} may not include <{system}>: it belongs to {', '.join(sorted(allowed)) or 'tests'}"
        if folder == BASE and not BASE_LIBRARIES.match(system):
            return f"{BASE} includes the standard library and fmt only, not <{system}>"
        if (root / system).is_file():
            return f"<{system}> is a file of the project: write \"{system}\""
        return None
    if not (root / quoted).is_file():
        return f"\"{quoted}\" is no file under the root: includes are written from the root"
    target = folder_of(quoted)
    if target not in ALLOWED[folder]:
        return f"{folder} may not include {target} (\"{quoted}\")"
    return check_rooms(name, quoted)


def cycles(graph):
    """One problem for each header that includes itself through others."""
    problems, done = [], set()

    def visit(name, path):
        if name in path:
            problems.append(f"{name}: include cycle: {' -> '.join(path[path.index(name):] + [name])}")
            return
        if name in done:
            return
        for target in graph.get(name, ()):
            visit(target, path + [name])
        done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return problems


def check(root):
    """(number of files read, number of include lines, list of problems)"""
    files, includes, problems, graph = 0, 0, [], {}
    for name in sources(root):
        folder = folder_of(name)
        if folder in FREE:
            continue
        files += 1
        if folder not in ALLOWED:
            problems.append(f"{name}:1: folder {folder} is not in the table of layers")
            continue
        for number, line in enumerate((root / name).read_text(errors="replace").splitlines(), 1):
            problem = check_line(root, name, folder, line)
            if problem:
                problems.append(f"{name}:{number}: {problem}")
            match = INCLUDE.match(line)
            includes += bool(match)
            if match and match.group(3):
                graph.setdefault(name, []).append(match.group(3))
    return files, includes, problems + cycles(graph) + list(check_heads(root, graph)) + list(check_page(root))


def self_test():
    """The checker must see each kind of fault, and must not see one in a clean tree."""
    head = "# What lives there.\n# Includes {}.\n\n"
    page = "".join(f"| `{folder}/` | {line.replace('.', 'its own files')} |\n" for folder, line in ROOMS.items())
    clean = {"runtime/base/check.h": "#include <string>\n#include <fmt/format.h>\n", "runtime/device/stream.h": '#include "runtime/base/check.h"\n',
             "comm/mpi/world.cpp": '#include <mpi.h>\n#include "comm/world.h"\n', "comm/mpi/meson.build": head.format("comm"),
             "kernels/kernels.h": '#include "runtime/device/stream.h"\n', "comm/world.h": '#include "runtime/device/stream.h"\n',
             "model/train/cli/main.cpp": '#include "comm/world.h"\n#include "model/train/rank/start.h"\n', "model/train/rank/start.h": "",
             "model/train/meson.build": head.format("no room beside it"), "model/train/cli/meson.build": head.format("rank"),
             "tests/x.cpp": '#include "model/train/cli/main.cpp"\n', "bench/ranks.h": '#include <oneapi/dnnl/dnnl.hpp>\n#include "comm/world.h"\n',
             ARCHITECTURE: page}
    faults = [("runtime/base/a.h", '#include "runtime/device/stream.h"'), ("runtime/device/a.h", '#include "kernels/kernels.h"'),
              ("comm/a.cpp", '#include "kernels/kernels.h"'), ("kernels/cpu/a.h", '#include "comm/world.h"'),
              ("runtime/tensor/a.cpp", '#include "comm/world.h"'), ("runtime/tensor/a.cpp", "#include <mpi.h>"),
              ("runtime/shard/execute/a.h", '#include "model/train/cli/main.cpp"'), ("model/nn/a.h", '#include "tests/x.cpp"'),
              ("model/nn/a.h", '#include "bench/ranks.h"'), ("runtime/shard/execute/a.h", '#include "bench/ranks.h"'),
              ("runtime/base/a.h", "#include <spdlog/spdlog.h>"), ("comm/a.cpp", '#include "world.h"'), ("comm/a.cpp", "#include <comm/world.h>"),
              ("comm/a.cpp", "  #  include SOME_MACRO"), ("extra/a.cpp", ""), ("comm/a.h", '#include "comm/a.h"'),
              # Of rooms: a back arrow, one between rooms of a level, a room that no table has, files of the folder itself that look into a room.
              ("model/train/rank/a.h", '#include "model/train/cli/main.cpp"'), ("comm/shm/a.h", '#include "comm/mpi/world.cpp"'),
              ("model/new_room/a.h", '#include "model/train/rank/start.h"'), ("comm/a.h", '#include "comm/mpi/world.cpp"'),
              # Of heads and the page.
              ("comm/shm/a.cpp", ""), ("comm/mpi/meson.build", head.format("no room beside it")),
              ("comm/mpi/meson.build", 4 * "# One line more.\n" + head.format("comm")), ("model/train/cli/meson.build", "x = 1"),
              (ARCHITECTURE, page.replace("cpu, cuda", "cuda"))]

    def count(tree):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in tree.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check(pathlib.Path(folder))

    wrong = [f"a clean tree has problems: {count(clean)[2]}"] if count(clean)[2] else []
    wrong += [f"not found: {name}: {line}" for name, line in faults if len(count({**clean, name: line + "\n"})[2]) != 1]
    return wrong


def main():
    if sys.argv[1:] == ["--self-test"]:
        wrong = self_test()
        print("\n".join(wrong) or "every planted fault is found")
        return 1 if wrong else 0
    files, includes, problems = check(pathlib.Path(sys.argv[1]))
    print("\n".join(problems))
    print(f"{files} files, {includes} include lines, {len(problems)} problems")
    if files == 0 or includes == 0:
        print("no source files were found: the test looked in the wrong place")
        return 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
