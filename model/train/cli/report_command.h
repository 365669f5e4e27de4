#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "runtime/base/check.h"

namespace zs {

/// A report that is wanted of a run that is there.
struct ReportJob {
  std::string of;   ///< the run's directory; empty: none is wanted
  std::string out;  ///< empty: report.html in there
};

void add_report_options(CLI::App& app, ReportJob& job);

/// Writes it, from the run's files; the run may go on meanwhile. A line that names it. Throws Error: of a damaged line
/// only once the report without it is written.
std::string write_report(const ReportJob& job);

}  // namespace zs
