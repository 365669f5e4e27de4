// bench_kernels: how fast each kernel is, compared with a copy or a product measured beside it.

#include <CLI/CLI.hpp>

#include <cstdio>

#include "bench/kernel_bench.h"
#include "model/train/error_line.h"
#include "model/train/program.h"
#include "model/version.h"

namespace {

using zs::Error;
using zs::ExitCode;

struct CommandLine {
  zs::bench::KernelOptions kernels;
  bool json = false, list = false;
};

void add_options(CLI::App& app, CommandLine& line) {
  zs::bench::KernelOptions& kernels = line.kernels;
  app.add_option("--filter", kernels.filter, "only kernels whose text (see --list) contains this");
  app.add_option("--dtype", kernels.dtype, "only this")->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--threads", kernels.threads, "threads of the team, repeatable; default 1 and all that this process may use")
      ->check(CLI::Range(1, 1024))
      ->allow_extra_args(false);
  app.add_option("--min-time", kernels.min_time_s, "seconds for each kernel, shape and number of threads")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  app.add_flag("--list", line.list, "print the texts and measure nothing");
  app.add_flag("--json", line.json, "one line of JSON instead of a table");
  app.set_version_flag("--version", std::string("zshard ") + zs::version());
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Measures each kernel at the shapes of GPT-2 124M and at odd ones.", "bench_kernels");
  CommandLine line;
  add_options(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    throw Error(ExitCode::usage, error.what(), "command line", "see bench_kernels --help");
  }
  if (zs::detect_launch() == zs::Launch::mpirun)
    throw Error(ExitCode::usage, "ranks would disturb each other's times", "mpirun", "start bench_kernels without mpirun");
  if (line.list) {
    for (const auto& one : selected_cases(line.kernels)) fmt::print("{}\n", one.text());
    return 0;
  }
  const zs::bench::KernelReport report = zs::bench::KernelBench(line.kernels).run();
  fmt::print("{}\n", line.json ? to_json(report) : to_text(report));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  zs::limit_spinning(argv);
  try {
    return parse_and_run(argc, argv);
  } catch (...) {
    const Error error = zs::as_error(std::current_exception());
    fmt::print(stderr, "{}\n", zs::error_line(error, {}, "bench_kernels"));
    return static_cast<int>(error.code());
  }
}
