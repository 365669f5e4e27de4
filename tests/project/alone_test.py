#!/usr/bin/env python3
"""Every header of the product, and with --sources every source too, compiles by itself: a build of several files at once (unity) hides an include
that is missing. Headers go through GCC, and through clang with libc++ where these are installed.
Usage: alone_test.py SOURCE_ROOT [--sources]   (or --self-test)"""

import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

import clang_tools

FOR_NVCC = "kernels/cuda/"       # compiled by nvcc, and by the emulation's own sources
OF_TILES = "kernels/cpu/amx.h"   # a part of the files that are compiled for AMX, with their flags and headers
GCC_VECTORS = "kernels/cpu/"     # written in GCC's vector extensions, some of which clang 14 does not have


FLAGS = ["-std=c++20", "-fopenmp", "-w"]


def compilers():
    """(name, command, whether it is GCC)"""
    yield "g++", ["g++"], True
    if shutil.which("clang++-14") and pathlib.Path("/usr/lib/llvm-14/include/c++/v1").is_dir():
        yield "clang++ with libc++", ["clang++-14", "-stdlib=libc++", "-Wno-unknown-warning-option"], False


def include_flags():
    mpi = subprocess.run(["pkg-config", "--cflags-only-I", "ompi-cxx"], capture_output=True, text=True, check=True).stdout.split()
    return ["-isystem" + flag[2:] for flag in mpi] + ["-DTOML_HEADER_ONLY=0", "-DTOML_SHARED_LIB=1"]


def files(root, ending, left_out):
    names = (str(path.relative_to(root)) for folder in clang_tools.FOLDERS for path in (root / folder).rglob("*" + ending))
    return sorted(name for name in names if not name.startswith(left_out))


def problems_of_headers(root):
    problems = []
    for compiler, command, is_gcc in compilers():
        names = files(root, ".h", (FOR_NVCC, OF_TILES) if is_gcc else (FOR_NVCC, GCC_VECTORS))
        flags = [*FLAGS, "-I.", *include_flags(), "-fsyntax-only", "-x", "c++"]
        wrong = clang_tools.run_over([[name] for name in names], command + flags, root)
        problems += [f"{name} does not compile alone ({compiler}):\n{text}" for (name,), text in wrong]
        print(f"{len(names)} headers by {compiler}, {len(wrong)} that do not compile alone")
    return problems


def problems_of_sources(root):
    """By the commands of a build of single files, configured for this in a temporary folder."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        commands = clang_tools.single_file_commands(root, folder)
        for name, command in commands.items():
            words = shlex.split(command)
            words = words[words.index("c++") if "c++" in words else 0:]
            done = subprocess.run([*words[:words.index("-o")], "-fsyntax-only", words[-1]], cwd=folder, capture_output=True, text=True, timeout=600)
            if done.returncode != 0:
                wrong.append(f"{name} does not compile alone:\n{done.stderr}")
    print(f"{len(commands)} sources, {len(wrong)} that do not compile alone")
    return wrong


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "comm").mkdir()
        (root / "comm" / "whole.h").write_text("#pragma once\n#include <string>\ninline std::string name() { return {}; }\n")
        assert problems_of_headers(root) == []
        (root / "comm" / "part.h").write_text("#pragma once\ninline std::string name() { return {}; }\n")
        found = problems_of_headers(root)
        assert found and all(problem.startswith("comm/part.h") for problem in found), found
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1]).resolve()
    problems = problems_of_headers(root) + (problems_of_sources(root) if "--sources" in sys.argv else [])
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
