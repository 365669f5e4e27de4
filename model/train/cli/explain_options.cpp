#include "model/train/cli/explain_options.h"

#include "model/train/config/expand_path.h"
#include "runtime/base/check.h"
#include "runtime/base/parse_integer.h"

namespace zs {

void add_explain_options(CLI::App& app, ExplainOptions& options) {
  options.explain = app.add_option("--explain", options.steps,
                                   "print where the time of N steps (10) went, those after the first, and go on "
                                   "(docs/looking-at-a-run.md)")
                        ->type_name("[N]")
                        ->expected(0, 1);
  app.add_option("--trace", options.trace,
                 "write what each stream did in these steps (3, without --explain) for Perfetto or chrome://tracing")
      ->type_name("FILE.json")
      ->check([](const std::string& text) { return text.empty() ? std::string("needs a file") : std::string(); });
}

ExplainRequest explain_request(const ExplainOptions& options, std::string& config_path) {
  ExplainRequest request{.prints = options.explain->count() > 0, .trace = expand_path(options.trace)};
  if (!request.prints && request.trace.empty()) return request;
  request.steps = request.prints ? ExplainRequest::kDefaultSteps : ExplainRequest::kDefaultTracedSteps;
  // As CLI11 has an option that is given without its value.
  if (options.steps.empty() || options.steps == "true" || options.steps == "{}") return request;
  const auto number = parse_integer<std::int64_t>(options.steps);
  if (number && *number >= 1 && *number <= ExplainRequest::kMostSteps) {
    request.steps = *number;
  } else if (!number && config_path.empty()) {
    config_path = options.steps;
  } else {
    throw Error(ExitCode::usage, fmt::format("--explain {}: not a number of steps", options.steps), "command line",
                fmt::format("give one from 1 to {}, or none", ExplainRequest::kMostSteps));
  }
  return request;
}

std::string describe(const ExplainRequest& request) {
  return fmt::format("--explain = {}\n--trace = {}\n", request.prints ? std::to_string(request.steps) : "no",
                     request.trace.empty() ? "no" : request.trace);
}

}  // namespace zs
