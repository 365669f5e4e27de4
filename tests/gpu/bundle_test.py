#!/usr/bin/env python3
"""A bundle (tests/gpu/bundle) is enough where the packages that it stands for are gone: a program that uses every library is found by
pkg-config, compiled, and run by mpirun, all from the bundle, after that was moved. Exit 77 where packages cannot be hidden."""

import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import bare  # noqa: E402

PROGRAM = r"""
#include <mpi.h>
#include <xxhash.h>
#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <fmt/core.h>
#include <nlohmann/json.hpp>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <sentencepiece_processor.h>
#include <utf8proc.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <toml++/toml.h>
int main(int argc, char** argv) {
  int rank = 0, sum = 0;
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS || MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS) return 1;
  if (MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS) return 1;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  const auto table = toml::parse("n = 3");
  CLI::App app;
  const sentencepiece::SentencePieceProcessor pieces;
  if (pcre2_config(PCRE2_CONFIG_JIT, nullptr) < 0 || utf8proc_version() == nullptr || pieces.status().ok()) return 1;
  fmt::print("rank {} sum {} {} {} {}\n", rank, sum, nlohmann::json::parse("[1]").dump(), *table["n"].value<int>(), XXH64("", 0, 0) != 0);
  return MPI_Finalize();
}
"""
SCRIPT = """set -e
for gone in mpirun pkg-config ssh rsh; do ! command -v $gone >/dev/null || { echo "$gone is still there"; exit 1; }; done
. "$1/env"
pkg-config --cflags --libs fmt dnnl libpcre2-8 libutf8proc sentencepiece libxxhash nlohmann_json tomlplusplus CLI11 catch2 ompi-cxx > "$2/flags"
g++ -std=c++20 "$2/program.cpp" -o "$2/program" $(cat "$2/flags")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun -q --oversubscribe --bind-to none -np 2 "$2/program"
"""


def fail(message):
    sys.exit(f"bundle_test: {message}")


def run(words):
    done = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def main():
    with tempfile.TemporaryDirectory() as folder:
        here = pathlib.Path(folder)
        scratch, made, moved = here / "over", here / "made", here / "moved"
        scratch.mkdir()
        if not bare.is_possible(scratch):
            print("skipped: no root, no overlay file systems, or not the packages: they cannot be hidden")
            sys.exit(bare.SKIPPED)
        print(run([pathlib.Path(__file__).with_name("bundle"), made]).stdout, end="")
        made.rename(moved)
        if (moved / "kjv.txt").stat().st_size < 4300000:
            fail("the bundle's corpus is too short")
        (here / "program.cpp").write_text(PROGRAM)
        done = run(bare.command(moved, scratch, ["bash", "-c", SCRIPT, "bash", moved, here]))
        if done.stderr:
            fail(f"something was said on stderr: {done.stderr}")
        lines = sorted(done.stdout.splitlines())
        if lines != ["rank 0 sum 1 [1] 3 true", "rank 1 sum 1 [1] 3 true"]:
            fail(f"the program printed {lines}")
        outside = [word for word in (here / "flags").read_text().split() if "/usr" in word and not word[2:].startswith(str(moved))]
        if outside:
            fail(f"pkg-config leads outside the bundle: {outside}")


if __name__ == "__main__":
    main()
