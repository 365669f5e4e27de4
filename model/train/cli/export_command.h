#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "model/train/run_dir/export.h"

namespace zs {

void add_export_options(CLI::App& app, ExportJob& job);

/// Exports the model of `from` and says so in a line. Error(usage) where that is empty.
std::string export_from(ExportJob& job, const std::string& from);

}  // namespace zs
