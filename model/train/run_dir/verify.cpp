#include "model/train/run_dir/verify.h"

#include <cstdio>
#include <filesystem>
#include <vector>

#include "model/train/rank/error_line.h"
#include "model/train/rank/print.h"
#include "model/train/run_dir/frozen_weights.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/units.h"
#include "runtime/shard/checkpoint/checkpoint_folder.h"

namespace zs {
namespace {

std::string verify_one(const std::string& folder) {
  CheckpointReader reader(folder);
  reader.verify();
  std::int64_t bytes = 0;
  for (const CheckpointFile& file : reader.manifest().files) bytes += file.bytes;
  std::string beside;
  if (const auto frozen = FrozenWeights::in(reader.manifest().attributes))
    beside = fmt::format(", beside {} in {}", format_bytes(frozen->bytes), frozen->check({}, folder).folder);
  return fmt::format("{}: good: step {}, {} tensors, {} from {}{}", folder, reader.manifest().step,
                     reader.manifest().tensors.size(), format_bytes(bytes),
                     format_number(static_cast<std::int64_t>(reader.manifest().files.size()), "rank"), beside);
}

}  // namespace

int verify_checkpoints(const std::string& path) {
  const std::string root = path + "/checkpoints";
  std::vector<std::string> folders;
  for (const std::int64_t step : list_checkpoints(root)) folders.push_back(step_folder(root, step));
  std::error_code failed;
  const bool is_listed = !folders.empty();
  if (folders.empty() && std::filesystem::exists(root, failed))
    throw Error(ExitCode::checkpoint, "there is no checkpoint", root, "");
  if (folders.empty()) folders.push_back(path);
  int code = 0;
  for (const std::string& folder : folders) {
    try {
      print_to_stdout("{}\n", verify_one(folder));
    } catch (const Error& error) {
      if (is_listed && !std::filesystem::exists(folder, failed)) continue;  // its run has removed it meanwhile
      code = static_cast<int>(error.code());
      print_to_stderr("{}\n", error_line(error));
    }
  }
  return code;
}

}  // namespace zs
