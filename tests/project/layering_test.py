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
    "pcre2": {MODEL},
    "utf8proc": {MODEL},
    "sentencepiece": {MODEL},
    "catch2/": set(),
}
# base builds on the standard library, fmt, and what the operating system itself offers.
BASE_LIBRARIES = re.compile(r"^([a-z_0-9]+|c[a-z]+|fmt/.*|sys/.*|linux/.*|unistd\.h|fcntl\.h|sched\.h|pthread\.h|immintrin\.h)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:(<)([^>]+)>|"([^"]+)"|(\S.*))')
SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".cuh"}


def folder_of(path):
    parts = path.split("/")
    two = "/".join(parts[:2])
    return two if two in ALLOWED else parts[0]


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
    return None


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
    return files, includes, problems + cycles(graph)


def self_test():
    """The checker must see each kind of fault, and must not see one in a clean tree."""
    clean = {"runtime/base/check.h": "#include <string>\n#include <fmt/format.h>\n", "runtime/device/stream.h": '#include "runtime/base/check.h"\n',
             "comm/world.cpp": '#include <mpi.h>\n#include "runtime/device/stream.h"\n', "kernels/kernels.h": '#include "runtime/device/stream.h"\n',
             "model/main.cpp": '#include "comm/world.h"\n', "comm/world.h": "\n", "tests/x.cpp": '#include "model/main.cpp"\n',
             "bench/ranks.h": '#include <oneapi/dnnl/dnnl.hpp>\n#include "comm/world.h"\n'}
    faults = [("runtime/base/a.h", '#include "runtime/device/stream.h"'), ("runtime/device/a.h", '#include "kernels/kernels.h"'),
              ("comm/a.cpp", '#include "kernels/kernels.h"'), ("kernels/cpu/a.cpp", '#include "comm/world.h"'),
              ("runtime/tensor/a.cpp", '#include "comm/world.h"'), ("runtime/tensor/a.cpp", "#include <mpi.h>"),
              ("runtime/shard/a.h", '#include "model/main.cpp"'), ("model/a.cpp", '#include "tests/x.cpp"'),
              ("model/a.cpp", '#include "bench/ranks.h"'), ("runtime/shard/a.h", '#include "bench/ranks.h"'),
              ("runtime/base/a.h", "#include <spdlog/spdlog.h>"), ("comm/a.cpp", '#include "world.h"'), ("comm/a.cpp", "#include <comm/world.h>"),
              ("comm/a.cpp", "  #  include SOME_MACRO"), ("extra/a.cpp", ""), ("comm/a.h", '#include "comm/a.h"')]

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
