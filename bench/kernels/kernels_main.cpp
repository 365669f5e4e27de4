// bench_kernels: how fast each kernel is, compared with a copy or a product measured beside it.

#include "bench/common/rank_program.h"
#include "bench/kernels/gpu_kernel_bench.h"
#include "bench/kernels/kernel_bench.h"

namespace {

struct CommandLine {
  zs::bench::KernelOptions kernels;
  bool json = false, list = false;
};

void add_options(CLI::App& app, CommandLine& line) {
  zs::bench::KernelOptions& kernels = line.kernels;
  app.add_option("--device", kernels.device, "whose kernels")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--filter", kernels.filter, "only kernels whose text (see --list) contains this");
  app.add_option("--dtype", kernels.dtype, "only this")->check(CLI::IsMember({"f32", "bf16"}));
  app.add_option("--threads", kernels.threads,
                 "threads of the CPU's team, repeatable; default 1 and all that this process may use")
      ->check(CLI::Range(1, 1024))
      ->allow_extra_args(false);
  zs::bench::add_min_time_option(app, kernels.min_time_s, "seconds for each kernel, shape and number of threads");
  app.add_flag("--cudnn", kernels.cudnn, "with --device cuda: attention by cuDNN where it can, instead of own kernels");
  app.add_flag("--list", line.list, "print the texts and measure nothing");
  app.add_flag("--json", line.json, "one line of JSON instead of a table");
}

std::unique_ptr<zs::World> one_rank(std::optional<zs::Error>& problem) {
  if (zs::detect_launch().is_by_mpi() && !problem)
    problem.emplace(zs::ExitCode::usage, "ranks would disturb each other's times", "mpirun",
                    "start bench_kernels without mpirun");
  return zs::bench::launched_world(problem);
}

std::string measure(const CommandLine& line) {
  if (line.list) {
    std::string texts;
    for (const auto& one : selected_cases(line.kernels)) texts += (texts.empty() ? "" : "\n") + one.text();
    return texts;
  }
  const bool is_gpu = line.kernels.device == "cuda";
  if (is_gpu && !line.kernels.threads.empty())
    throw zs::Error(zs::ExitCode::usage, "a GPU has no team of threads to choose", "--threads",
                    "leave it out with --device cuda");
  if (!is_gpu && line.kernels.cudnn)
    throw zs::Error(zs::ExitCode::usage, "cuDNN is for GPUs", "--cudnn", "leave it out, or add --device cuda");
  const zs::bench::KernelReport report =
      is_gpu ? zs::bench::GpuKernelBench(line.kernels).run() : zs::bench::KernelBench(line.kernels).run();
  return line.json ? to_json(report) : to_text(report);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures each kernel at the shapes of GPT-2 124M and at odd ones, on the CPU or on a GPU.",
               "bench_kernels");
  CommandLine line;
  add_options(app, line);
  const auto body = [&](zs::World&) { return zs::bench::ProgramOutput{measure(line)}; };
  return zs::bench::run_rank_program(argc, argv, app, {one_rank, {}, body});
}
