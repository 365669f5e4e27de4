#include "runtime/shard/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <new>
#include <set>
#include <sstream>

#include "runtime/shard/held_state.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

/// An attribute of our own: how often parameters were updated, where that is not the step; "12 blocks.3.up.weight", one
/// a line.
constexpr std::string_view kUpdates = ".updates";
std::string updates_key(const Optimizer& optimizer) { return fmt::format("{}{}", optimizer.kind(), kUpdates); }
constexpr char kSeparator = '\x1f';

/// Calls use(unit, place in it, name) for every parameter of every unit.
template <class Use>
void for_each_parameter(const Executor& executor, const Use& use) {
  for (std::size_t unit = 0; unit < executor.units().size(); ++unit) {
    const auto& views = executor.units()[unit].layout->views();
    for (std::size_t i = 0; i < views.size(); ++i) use(unit, i, views[i].name);
  }
}

std::map<std::string, std::string> attributes_of(const TrainingState& state, const CheckpointInfo& info) {
  std::map<std::string, std::string> attributes = info.attributes;
  std::string updates;
  for_each_parameter(state.executor, [&](std::size_t unit, std::size_t i, const std::string& name) {
    const std::int64_t count = state.optimizer.updates(unit, i);
    if (count != info.step) updates += fmt::format("{} {}\n", count, name);
  });
  if (!updates.empty()) attributes[updates_key(state.optimizer)] = updates;
  return attributes;
}

/// Takes the attribute out of `info`.
void set_updates(const TrainingState& state, CheckpointInfo& info) {
  std::map<std::string, std::int64_t> updates;
  std::istringstream lines(info.attributes[updates_key(state.optimizer)]);
  info.attributes.erase(updates_key(state.optimizer));
  std::string name;
  for (std::int64_t count = 0; lines >> count && lines.ignore() && std::getline(lines, name);) updates[name] = count;
  for_each_parameter(state.executor, [&](std::size_t unit, std::size_t i, const std::string& parameter) {
    const auto counted = updates.find(parameter);
    state.optimizer.set_updates(unit, i, counted == updates.end() ? info.step : counted->second);
  });
}

/// Every rank's rows of `width` numbers. Collective; blocks.
std::vector<std::vector<std::int64_t>> gather_numbers(Executor& executor, const std::vector<std::int64_t>& own) {
  Context& context = executor.context();
  Stream& compute = context.stream();
  Communicator& comm = executor.compute_comm();
  const Memory count_memory = context.pool().acquire(size_of(DType::i64), compute, "checkpoint");
  const Buffer most = count_memory.buffer(DType::i64, 1);
  context.launch({"checkpoint_count", {}, {most}}, upload_of(context.kernels(), most, std::vector{std::ssize(own)}));
  comm.all_reduce(compute, "checkpoint", most, ReduceOp::max);
  const std::int64_t row = *HostView(context, compute, most).as<std::int64_t>() + 1;  // its length first
  const Memory memory = context.pool().acquire(row * comm.size() * size_of(DType::i64), compute, "checkpoint");
  const Buffer all = memory.buffer(DType::i64, row * comm.size()), mine = all.slice(row * comm.rank(), row);
  std::vector<std::int64_t> numbers{std::ssize(own)};
  numbers.insert(numbers.end(), own.begin(), own.end());
  numbers.resize(static_cast<std::size_t>(row));
  context.launch({"checkpoint_numbers", {}, {mine}}, upload_of(context.kernels(), mine, std::move(numbers)));
  comm.all_gather(compute, "checkpoint", mine, all);
  const HostView gathered(context, compute, all);
  std::vector<std::vector<std::int64_t>> rows;
  for (int rank = 0; rank < comm.size(); ++rank) {
    const std::int64_t* begin = gathered.as<std::int64_t>() + row * rank;
    rows.emplace_back(begin + 1, begin + 1 + *begin);
  }
  return rows;
}

std::vector<std::vector<ElementRange>> gather_ranges(Executor& executor, const std::vector<HeldTensor>& tensors) {
  std::vector<std::int64_t> own;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (const auto& [range, data] : tensors[i].pieces)
      own.insert(own.end(), {static_cast<std::int64_t>(i), range.begin, range.count, range.runs, range.stride});
  }
  std::vector<std::vector<ElementRange>> held;
  for (const auto& row : gather_numbers(executor, own)) {
    std::vector<ElementRange> ranges;
    for (std::size_t i = 0; i + 4 < row.size(); i += 5)
      ranges.push_back({row[i], row[i + 1], row[i + 2], row[i + 3], row[i + 4]});
    held.push_back(std::move(ranges));
  }
  return held;
}

void check_finite(const HeldTensor& held, std::int64_t begin, const Buffer& data) {
  constexpr std::uint32_t kExponent = 0x7f800000u;
  const float* values = data.as<float>();
  const float* bad = std::find_if(values, values + data.elems, [](float value) {
    return (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent;
  });
  if (bad == values + data.elems) return;
  throw Error(ExitCode::non_finite,
              fmt::format("{} of {} is not finite and will not be saved", held.tensor.kind, held.tensor.parameter),
              fmt::format("element {}", begin + (bad - values)),
              "go on from an earlier checkpoint with a lower learning rate");
}

/// This rank's part of what is being saved.
class ShardWriter {
 public:
  ShardWriter(const Context& context, const std::vector<HeldTensor>& tensors, const std::vector<SavedSegment>& segments)
      : context_(context), tensors_(tensors), segments_(segments) {}

  void write(DataFileWriter& file, std::int64_t data_bytes) const {
    for (const SavedSegment& segment : segments_) {
      file.pad_to(segment.offset);
      const HeldTensor& held = tensors_[static_cast<std::size_t>(segment.tensor)];
      for (std::int64_t run = 0; run < segment.runs; ++run) {
        for (std::int64_t at = segment.begin; at < segment.begin + segment.count;) {
          const HostView view(context_, context_.stream(), piece_at(held, run, at, segment.begin + segment.count));
          const Buffer& data = view.buffer();
          check_finite(held, run * segment.stride + at, data);
          file.append(data.data, data.bytes());
          at += data.elems;
        }
      }
    }
    file.pad_to(data_bytes);
  }

 private:
  /// Elements [at, end) of a run, as far as they lie in one piece.
  static Buffer piece_at(const HeldTensor& held, std::int64_t run, std::int64_t at, std::int64_t end) {
    for (const auto& piece : held.pieces) {
      const std::int64_t into = at - piece.range.begin;
      if (into >= 0 && into < piece.range.count)
        return piece.run(run).slice(into, std::min(piece.range.count - into, end - at));
    }
    ZS_CHECK(false, "element {} of {} is not held here", at, held.tensor.parameter);
  }

  const Context& context_;
  const std::vector<HeldTensor>& tensors_;
  const std::vector<SavedSegment>& segments_;
};

/// A save on its way: the steps of docs/checkpoints.md, each on the ranks that it concerns.
class Saver {
 public:
  Saver(const TrainingState& state, const std::string& root, const CheckpointInfo& info, FileWatch* watch)
      : state_(state),
        root_(root),
        info_(info),
        io_(watch),
        folder_(step_folder(root, info.step)),
        writing_(folder_ + kWritingSuffix) {}

  void run() {
    const std::vector<HeldTensor> tensors = held_tensors(state_.executor, &state_.optimizer);
    manifest_.step = info_.step;
    manifest_.attributes = attributes_of(state_, info_);
    for (const HeldTensor& held : tensors) manifest_.tensors.push_back(held.tensor);
    const auto writes = plan_writes(gather_ranges(state_.executor, tensors), manifest_.numels());
    for (const auto& ranges : writes) {
      manifest_.files.push_back({0, 0, lay_out(ranges, manifest_.element_bytes(), sizeof(DataHeader))});
    }
    try {
      together(state_.world, [&] { begin(); });
      together(state_.world, [&] { write(tensors); });
      gather_digests();
      together(state_.world, [&] { commit(); });
    } catch (const AgreedError&) {
      clean_up();
      throw;
    }
  }
  const std::string& folder() const { return folder_; }

 private:
  bool is_first() const { return state_.world.rank() == 0; }

  void begin() const {
    if (!is_first()) return;
    std::error_code failed;
    if (std::filesystem::exists(std::filesystem::symlink_status(folder_, failed)))
      throw Error(ExitCode::cannot_create, "this checkpoint is already there", folder_, "move it elsewhere");
    io_.make_folder(root_);
    io_.sync_folder(std::filesystem::absolute(root_).parent_path().string());
    io_.remove_folder(writing_);
    io_.make_folder(writing_);
  }

  void write(const std::vector<HeldTensor>& tensors) {
    const auto rank = static_cast<std::size_t>(state_.world.rank());
    const std::vector<SavedSegment>& segments = manifest_.files.at(rank).segments;
    DataHeader header;
    header.rank = state_.world.rank();
    header.ranks = state_.world.size();
    header.step = info_.step;
    header.data_bytes = data_end(segments, manifest_.element_bytes(), sizeof header);
    DataFileWriter file(writing_ + "/" + data_file_name(rank), header, io_.watch());
    ShardWriter(state_.executor.context(), tensors, segments).write(file, header.data_bytes);
    file.finish();
    bytes_ = file.bytes();
    digest_ = file.digest();
  }

  void gather_digests() {
    const auto rows = gather_numbers(state_.executor, {bytes_, std::bit_cast<std::int64_t>(digest_)});
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      manifest_.files[rank].bytes = rows[rank].at(0);
      manifest_.files[rank].digest = std::bit_cast<std::uint64_t>(rows[rank].at(1));
    }
  }

  void commit() const {
    if (!is_first()) return;
    for (std::size_t rank = 0; rank < manifest_.files.size(); ++rank) {
      const std::string path = writing_ + "/" + data_file_name(rank);
      std::error_code failed;
      const auto bytes = std::filesystem::file_size(path, failed);
      if (failed || static_cast<std::int64_t>(bytes) != manifest_.files[rank].bytes)
        throw Error(ExitCode::io, "what one rank wrote another does not find", path,
                    "save where all hosts see the same files");
    }
    const std::string text = to_text(manifest_);
    FileWriter file(writing_ + "/" + kManifestFile, static_cast<std::int64_t>(text.size()), io_.watch());
    file.write(text.data(), text.size());
    file.finish();
    io_.sync_folder(writing_);
    io_.rename(writing_, folder_);
    io_.sync_folder(root_);
  }

  /// As far as it goes: the error that is under way says more.
  void clean_up() const noexcept {
    if (!is_first()) return;
    try {
      io_.remove_folder(writing_);
    } catch (const std::exception&) {  // it is ignored by its name, and removed by the next save that succeeds
    }
  }

  TrainingState state_;
  const std::string& root_;
  const CheckpointInfo& info_;
  FolderIo io_;
  std::string folder_, writing_;
  CheckpointManifest manifest_;
  std::int64_t bytes_ = 0;
  std::uint64_t digest_ = 0;
};

/// Without the state an optimizer goes on as if training began, so what it does not know is refused too.
void check_state(const CheckpointReader& reader, const std::vector<HeldTensor>& tensors) {
  std::set<std::string> saved, own;
  for (const CheckpointTensor& tensor : reader.manifest().tensors)
    if (tensor.kind != kMasterKind) saved.insert(tensor.kind);
  for (const auto& [tensor, pieces] : tensors)
    if (tensor.kind != kMasterKind) own.insert(tensor.kind);
  if (saved == own) return;
  const auto list = [](const std::set<std::string>& names) {
    return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
  };
  throw Error(ExitCode::checkpoint,
              fmt::format("the checkpoint has the state of another optimizer: {}, here {}", list(saved), list(own)),
              reader.folder(),
              "load it with the optimizer that it was saved with, or the weights alone by load_weights()");
}

/// What differs between a checkpoint's tensors, those of the kinds that are wanted, and the model's; empty when nothing
/// does.
std::string differences(const CheckpointReader& reader, const std::vector<HeldTensor>& tensors) {
  constexpr std::size_t kMostNamed = 5;
  std::vector<std::string> found;
  std::set<std::pair<std::string, std::string>> known;
  std::set<std::string> kinds;
  for (const auto& [tensor, pieces] : tensors) {
    known.insert({tensor.parameter, tensor.kind});
    kinds.insert(tensor.kind);
    const auto saved = reader.find(tensor.parameter, tensor.kind);
    if (!saved) {
      found.push_back(fmt::format("{} ({}) is not saved", tensor.parameter, tensor.kind));
    } else if (const Shape& shape = reader.manifest().tensors[static_cast<std::size_t>(*saved)].shape;
               shape != tensor.shape) {
      found.push_back(fmt::format("{} ({}) is {} there and {} here", tensor.parameter, tensor.kind, shape.str(),
                                  tensor.shape.str()));
    }
  }
  for (const CheckpointTensor& tensor : reader.manifest().tensors) {
    if (kinds.contains(tensor.kind) && !known.contains({tensor.parameter, tensor.kind}))
      found.push_back(fmt::format("{} ({}) is not in the model", tensor.parameter, tensor.kind));
  }
  if (found.empty()) return {};
  const std::size_t count = found.size();
  found.resize(std::min(count, kMostNamed));
  return fmt::format("{} tensors differ: {}{}", count, fmt::join(found, "; "), count > kMostNamed ? " ..." : "");
}

void fill(CheckpointReader& reader, const std::vector<HeldTensor>& tensors, Context& context) {
  if (const std::string found = differences(reader, tensors); !found.empty())
    throw Error(ExitCode::checkpoint, "the checkpoint is of another model: " + found, reader.folder(),
                "load it into the model that it was saved from");
  std::vector<CheckpointReader::Request> requests;
  for (const HeldTensor& held : tensors) {
    const std::int64_t tensor = reader.find(held.tensor.parameter, held.tensor.kind).value();
    for (const auto& piece : held.pieces) {
      for (std::int64_t run = 0; run < piece.range.runs; ++run)
        requests.push_back({tensor, piece.range.begin + run * piece.range.stride, piece.run(run)});
    }
  }
  CheckpointReader::Store store;
  if (context.device().kind() == DeviceKind::cuda) {
    store = [&](const Buffer& out, const void* elements) {
      if (out.device == DeviceKind::cuda) return upload_now(context, out, elements);
      std::memcpy(out.data, elements, static_cast<std::size_t>(out.bytes()));  // which the host keeps
    };
  }
  reader.read(requests, store);
  context.device().synchronize();
}

AgreedError decode(const std::string& message, int code) {
  std::vector<std::string> fields(1);
  for (const char c : message) {
    if (c == kSeparator) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  fields.resize(3);
  return AgreedError(static_cast<ExitCode>(code), fields[0], fields[1], fields[2]);
}

}  // namespace

void together(World& world, const std::function<void()>& body) {
  int code = 0;
  std::string message;
  const auto report = [&](ExitCode exit_code, const std::string& what, const std::string& where,
                          const std::string& todo) {
    constexpr std::size_t kMostWhere = 400;  // the end of a path says the most, and messages between ranks are short
    code = static_cast<int>(exit_code);
    message = what + kSeparator + (where.size() > kMostWhere ? where.substr(where.size() - kMostWhere) : where) +
              kSeparator + todo;
  };
  try {
    body();
  } catch (const Error& error) {
    report(error.code(), error.what_happened(), error.where(), error.what_to_do());
  } catch (const std::bad_alloc&) {
    report(ExitCode::out_of_memory, "out of memory", fmt::format("rank {}", world.rank()), "");
  } catch (const std::exception& error) {
    report(ExitCode::internal, error.what(), fmt::format("rank {}", world.rank()), "this is a defect of zshard");
  }
  const World::Agreement agreement = world.agree(code, message);
  if (agreement.code != 0) throw decode(agreement.message, agreement.code);
}

std::string save(const TrainingState& state, const std::string& root, const CheckpointInfo& info, FileWatch* watch) {
  state.executor.step().check_between_steps("save()");
  state.executor.context().device().synchronize();
  Saver saver(state, root, info, watch);
  saver.run();
  return saver.folder();
}

namespace {

CheckpointInfo load_tensors(World& world, Executor& executor, const Optimizer* optimizer, const std::string& folder) {
  executor.wait_readers();
  executor.context().device().synchronize();
  CheckpointInfo info;
  together(world, [&] {
    CheckpointReader reader(folder);
    const std::vector<HeldTensor> tensors = held_tensors(executor, optimizer);
    if (optimizer != nullptr) check_state(reader, tensors);
    fill(reader, tensors, executor.context());
    info = {reader.manifest().step, reader.manifest().attributes};
  });
  executor.masters_loaded();
  return info;
}

}  // namespace

CheckpointInfo load(const TrainingState& state, const std::string& folder) {
  state.executor.step().check_between_steps("load()");
  CheckpointInfo info = load_tensors(state.world, state.executor, &state.optimizer, folder);
  set_updates(state, info);
  return info;
}

CheckpointInfo load_weights(World& world, Executor& executor, const std::string& folder) {
  executor.step().check_between_steps("load_weights()");
  CheckpointInfo info = load_tensors(world, executor, nullptr, folder);
  std::erase_if(info.attributes, [](const auto& attribute) { return attribute.first.ends_with(kUpdates); });
  return info;
}

}  // namespace zs
