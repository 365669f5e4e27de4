#include "model/weights/weight_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>

#include "comm/together.h"
#include "model/weights/file_dtype.h"
#include "model/weights/safetensors.h"
#include "model/weights/weight_files.h"
#include "runtime/shard/checkpoint/held_state.h"
#include "runtime/shard/runtime/unshard_scope.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

using Values = std::vector<Parameter*>;

Values values_of(Executor& executor) {
  Values all;
  for (const FlatParameter& unit : executor.units())
    all.insert(all.end(), unit.parameters.begin(), unit.parameters.end());
  all.insert(all.end(), executor.ignored().begin(), executor.ignored().end());
  return all;
}

/// The first few of them, and how many there are.
std::string listed(const char* what, const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  if (names.empty()) return {};
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size())));
  return fmt::format(" {} {}{}", what, fmt::join(first, ", "),
                     names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "");
}

/// A model's tensors in a file, checked in full before anything is read.
class FileOfModel {
 public:
  FileOfModel(const std::string& path, const Values& values, const WeightFileOptions& options)
      : path_(path), files_(path) {
    std::set<std::string> known;
    for (const Parameter* value : values) {
      const std::string name = options.name_in_file ? options.name_in_file(value->name()) : value->name();
      if (name.empty()) continue;
      known.insert(name);
      if (const auto* header = files_.find(name)) {
        check(*value, *header);
        names_[value] = name;
      } else {
        report_.missing.push_back(value->name());
      }
    }
    for (const auto& [name, tensor] : files_.tensors())
      if (known.count(name) == 0) report_.unexpected.push_back(name);
    if (!options.strict || (report_.missing.empty() && report_.unexpected.empty())) return;
    throw Error(ExitCode::model,
                fmt::format("the tensors are not those of the model:{}{}", listed("missing", report_.missing),
                            listed("unexpected", report_.unexpected)),
                path, "rename them by name_in_file, or load with strict = false");
  }

  const WeightFileReport& report() const { return report_; }
  bool has(const Parameter& value) const { return names_.count(&value) != 0; }
  void read(const Parameter& value, float* out) {
    const std::string& name = names_.at(&value);
    const SafetensorsHeader::Tensor& header = *files_.find(name);
    std::vector<char> bytes(static_cast<std::size_t>(header.end - header.begin));
    files_.read(name, 0, bytes.data(), std::ssize(bytes));
    to_f32(header.dtype, bytes.data(), out, value.numel());
  }

 private:
  void check(const Parameter& value, const SafetensorsHeader::Tensor& header) const {
    const auto dims = value.shape().dims();
    if (!is_parameter_dtype(header.dtype))
      throw Error(ExitCode::model, fmt::format("tensor {} is {}", header.name, name_of(header.dtype)), path_,
                  "weights are F32, F16 or BF16");
    if (!std::equal(dims.begin(), dims.end(), header.shape.begin(), header.shape.end()))
      throw Error(ExitCode::model,
                  fmt::format("tensor {} is {}, and parameter {} is {}", header.name, header.shape_text(), value.name(),
                              value.shape().str()),
                  path_, "use a file of this model's sizes, or leave the parameter out by name_in_file");
  }

  std::string path_;
  WeightFiles files_;
  std::map<const Parameter*, std::string> names_;
  WeightFileReport report_;
};

/// Into the value that every rank holds whole.
void fill(Context& context, const Parameter& buffer, FileOfModel& file) {
  std::vector<float> values(static_cast<std::size_t>(buffer.numel()));
  file.read(buffer, values.data());
  const Buffer out = buffer.value();
  context.launch({"buffer", {}, {out}}, upload_of(context.kernels(), out, std::move(values)));
}

std::vector<TensorEntry> entries_of(const Values& values) {
  std::vector<TensorEntry> entries;
  for (const Parameter* value : values) entries.push_back({value->name(), DType::f32, value->shape()});
  return entries;
}

}  // namespace

WeightFileReport load_safetensors(World& world, ShardedRuntime& runtime, const std::string& path,
                                  const WeightFileOptions& options) {
  Executor& executor = runtime.executor();
  executor.step().check_between_steps("load_safetensors()");
  std::unique_ptr<FileOfModel> file;
  together(world, [&] { file = std::make_unique<FileOfModel>(path, values_of(executor), options); });
  constexpr int kReader = 0;
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit) {
    const UnshardScope scope(runtime, {unit}, {.only_rank = kReader, .on_host = true});
    if (executor.rank() != kReader) continue;
    for (const Parameter* parameter : executor.units()[static_cast<std::size_t>(unit)].parameters)
      if (file->has(*parameter)) file->read(*parameter, scope.value(*parameter).as<float>());
  }
  for (const Parameter* buffer : executor.ignored())
    if (file->has(*buffer)) fill(runtime.context(), *buffer, *file);
  return file->report();
}

void save_safetensors(World& world, ShardedRuntime& runtime, const std::string& path) {
  Executor& executor = runtime.executor();
  check_not_partitioned(executor, "save_safetensors()");
  executor.step().check_between_steps("save_safetensors()", StepState::Weights::any);
  std::unique_ptr<SafetensorsWriter> file;
  std::exception_ptr problem;  // problem of rank 0, which takes part in what is gathered all the same
  const auto write = [&](const std::function<void()>& body) {
    if (executor.rank() != 0 || problem) return;
    try {
      body();
    } catch (...) {
      problem = std::current_exception();
    }
  };
  write([&] { file = std::make_unique<SafetensorsWriter>(path, entries_of(values_of(executor))); });
  for (int unit = 0; unit < static_cast<int>(executor.units().size()); ++unit)
    executor.read_full(unit, [&](const Parameter& parameter, const float* values) {
      write([&] { file->append(values, parameter.numel() * size_of(DType::f32)); });
    });
  for (const Parameter* buffer : executor.ignored()) {
    const HostView values(runtime.context(), runtime.context().stream(), buffer->value());
    write([&] { file->append(values.as<float>(), buffer->numel() * size_of(DType::f32)); });
  }
  write([&] { file->finish(); });
  together(world, [&] {
    if (problem) std::rethrow_exception(problem);
  });
}

}  // namespace zs
