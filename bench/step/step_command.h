#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>

#include "bench/step/step_bench.h"

namespace zs::bench {

/// The options that every program around a training step has: the model's sizes, dtype, micro-batches, --set.
void add_step_options(CLI::App& app, StepOptions& step);
void add_count_option(CLI::App& app, const char* flag, std::int64_t& count, const char* what,
                      std::int64_t smallest = 1);

/// What such a program does on each rank, once all ranks have agreed that the command line is right and, where they
/// compute on GPUs, on who has which and what connects them; rank 0 prints what it returns.
using StepBody = std::function<std::string(World& world, const Config& config, const Machine& machine)>;

/// Reads the command line, launches and runs `body`; returns the exit code. Whatever goes wrong is told in one line.
int run_step_program(int argc, char** argv, CLI::App& app, const StepOptions& step, const StepBody& body);

}  // namespace zs::bench
