#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

#include "model/train/cli/inference_command.h"
#include "runtime/base/check.h"

namespace zs {

/// A report that is wanted of a run that is there.
struct ReportJob {
  std::string of;   ///< the run's directory; empty: none is wanted
  std::string out;  ///< empty: report.html in there
};

void add_report_options(CLI::App& app, ReportJob& job);

/// Error in its options beside others. `config_path` and `inference` as the command line has them; `other`: an option
/// of training or of another task that is given, too; empty: none.
std::optional<Error> misplaced(const ReportJob& job, const std::string& config_path, const InferenceCommand& inference,
                               const std::string& other);

/// Writes it, from the run's files; the run may go on meanwhile. A line that names it. Throws Error: of a damaged line
/// only once the report without it is written.
std::string write_report(const ReportJob& job);

}  // namespace zs
