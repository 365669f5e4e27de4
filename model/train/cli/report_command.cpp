#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>

#include "model/data/output_file.h"
#include "model/data/utf8.h"
#include "model/train/cli/commands.h"
#include "model/train/cli/rank_work.h"
#include "model/train/config/expand_path.h"
#include "model/train/report/report_page.h"
#include "model/train/report/run_record.h"
#include "model/train/run_dir/metrics.h"
#include "model/train/run_dir/run_dir.h"
#include "model/train/run_dir/run_mark.h"
#include "runtime/base/check.h"

namespace zs {
namespace {

/// Report that is wanted of a run that is there.
struct ReportJob {
  std::string of;   ///< the run's directory
  std::string out;  ///< empty: report.html in there
};

constexpr const char* kElsewhere = "write it elsewhere: --out FILE.html";

bool is_report(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string page = page_of("", "");
  std::string begin(page.find("<title>"), '\0');
  return file.read(begin.data(), std::ssize(begin)) && page.starts_with(begin);
}

/// The run's own report.html, which it lists in its mark.
void write_in_run(const std::string& dir, const std::string& path, const std::string& page) {
  RunMark mark = RunMark::find(dir).value();
  std::error_code failed;
  if (std::filesystem::exists(std::filesystem::symlink_status(path, failed)) && !mark.is_own_file(kReportFile))
    throw Error(ExitCode::cannot_create, "this is in the way, and it is not as the run wrote it", path, kElsewhere);
  OutputFile file(path);
  file.write(page.data(), page.size());
  mark.begin(kReportFile);
  file.commit();
  if (!is_in_use(dir + "/metrics.jsonl")) mark.wrote(kReportFile);  // else the run will write others
}

void write_page(const ReportJob& job, const std::string& page) {
  if (!job.out.empty()) {
    OutputFile file(job.out, OutputRule{.is_own = is_report});
    file.write(page.data(), page.size());
    return file.commit();
  }
  try {
    write_in_run(job.of, job.of + "/" + kReportFile, page);
  } catch (const Error& error) {
    throw Error(error.code(), error.what_happened(), error.where(), kElsewhere);
  }
}

/// Writes the page, from the run's files; the run may go on meanwhile. A line that names it. Throws Error: of a damaged
/// line only once the report without it is written.
std::string write_report(const ReportJob& given) {
  const ReportJob job{expand_path(given.of), expand_path(given.out)};
  const RunRecord record = read_run(job.of);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  write_page(job, report_page(record, std::chrono::duration_cast<std::chrono::seconds>(now).count()));
  const std::string path = job.out.empty() ? job.of + "/" + kReportFile : job.out;
  if (record.damaged_lines.empty()) return fmt::format("report: {}\n", escaped(path));
  const auto count = static_cast<std::int64_t>(record.damaged_lines.size());
  throw Error(ExitCode::dataset,
              fmt::format("{} not as a run writes {}; {} is written without {}",
                          count == 1 ? "a line is" : fmt::format("{} lines are", count), count == 1 ? "it" : "them",
                          path, count == 1 ? "it" : "them"),
              fmt::format("{}/metrics.jsonl, line {}", job.of, record.damaged_lines.front()),
              "restore the file, or remove what is damaged");
}

Command::Action add_report(CLI::App& app, const Invocation& by) {
  const auto job = std::make_shared<ReportJob>();
  app.add_option(by.spelled("RUN", "--report"), job->of, "the run's directory")
      ->type_name("RUN")
      ->required()
      ->check([](const std::string& text) { return text.empty() ? std::string("needs a run's directory") : ""; });
  app.add_option("--out", job->out, "the file to write; if not given report.html in the run's directory")
      ->type_name("FILE");
  return [job] { return run_alone([&] { return print_answer(write_report(*job)); }); };
}

}  // namespace

Command report_command() {
  return {.name = "report",
          .aliases = {"--report"},
          .usage = "RUN [--out FILE.html]",
          .summary = "Writes report.html of a run, with its curves (docs/looking-at-a-run.md).",
          .add = add_report};
}

}  // namespace zs
