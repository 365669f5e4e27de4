#include "runtime/shard/checkpoint/checkpoint_save.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "runtime/base/usage_error.h"
#include "runtime/shard/checkpoint/checkpoint_updates.h"
#include "runtime/shard/checkpoint/held_state.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

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
  if (data.dtype != DType::f32) return;
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
class ShardReader {
 public:
  ShardReader(Executor& executor, const std::vector<HeldTensor>& tensors, const std::vector<SavedSegment>& segments)
      : context_(executor.context()), link_(executor.link()), tensors_(tensors), segments_(segments) {}

  /// Calls use(segment, data) with the elements of each segment on the host, in its order.
  template <class Use>
  void for_each(const Use& use) const {
    std::vector<std::byte> read;
    for (const SavedSegment& segment : segments_) {
      const HeldTensor& held = tensors_[static_cast<std::size_t>(segment.tensor)];
      for (std::int64_t run = 0; run < segment.runs; ++run) {
        for (std::int64_t at = segment.begin; at < segment.begin + segment.count;) {
          Buffer piece = piece_at(held, run, at, segment.begin + segment.count);
          if (piece.dtype != held.tensor.dtype) piece = piece.slice(0, std::min(piece.elems, kCastElems));
          if (link_.is_on_disk(piece)) piece = read_piece(piece, read);
          const HostView view(context_, context_.stream(), piece);
          const Buffer data = piece.dtype == held.tensor.dtype ? view.buffer() : cast(view.buffer(), read);
          check_finite(held, run * segment.stride + at, data);
          use(segment, data);
          at += data.elems;
        }
      }
    }
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

  static constexpr std::int64_t kCastElems = DataFileWriter::kBlockBytes / size_of(DType::f32);

  /// bf16 as the f32 that a checkpoint holds.
  static Buffer cast(const Buffer& piece, std::vector<std::byte>& memory) {
    memory.resize(static_cast<std::size_t>(piece.elems * size_of(DType::f32)));
    auto* const values = reinterpret_cast<float*>(memory.data());
    std::transform(piece.as<BFloat16>(), piece.as<BFloat16>() + piece.elems, values,
                   [](BFloat16 value) { return static_cast<float>(value); });
    return {memory.data(), piece.elems, DType::f32, DeviceKind::cpu};
  }

  /// Reads as much of a piece as one block is: it comes from the disk to memory that the next one has, too.
  Buffer read_piece(const Buffer& piece, std::vector<std::byte>& memory) const {
    const Buffer part = piece.slice(0, std::min(piece.elems, DataFileWriter::kBlockBytes / size_of(piece.dtype)));
    memory.resize(static_cast<std::size_t>(part.bytes()));
    link_.read(part, memory.data());
    return {memory.data(), part.elems, part.dtype, DeviceKind::cpu};
  }

  const Context& context_;
  const HostLink& link_;
  const std::vector<HeldTensor>& tensors_;
  const std::vector<SavedSegment>& segments_;
};

/// Ranks that name other folders or steps would wait for what nobody makes. Collective.
void check_alike(World& world, const std::string& folder) {
  const std::string first = from_first(world, folder);
  together(world, [&] {
    if (folder != first)
      throw Error(ExitCode::ranks_disagree,
                  fmt::format("save() of {} on the first rank, and of {} here", first, folder),
                  fmt::format("rank {}", world.rank()), "give the same folder and step on every rank");
  });
}

}  // namespace

/// A save on its way: the steps of docs/checkpoints.md, each on the ranks that it concerns.
class CheckpointSaver {
 public:
  CheckpointSaver(const TrainingState& state, const std::string& root, const CheckpointInfo& info, FileWatch* watch)
      : state_(state),
        root_(root),
        step_(info.step),
        io_(watch),
        name_(step_name(info.step)),
        writing_(name_ + kWritingSuffix),
        tensors_(held_tensors(state.executor, &state.optimizer, info.with_frozen)) {
    if (info.step < 0) throw UsageError(fmt::format("save() of step {}", info.step), "count steps from 0");
    check_alike(state.world, folder());
    manifest_.step = info.step;
    manifest_.attributes = attributes_of(state, info);
    for (const HeldTensor& held : tensors_) manifest_.tensors.push_back(held.tensor);
    const auto writes = plan_writes(gather_ranges(state.executor, tensors_), manifest_.numels());
    for (const auto& ranges : writes) {
      manifest_.files.push_back({0, 0, lay_out(ranges, manifest_.element_bytes(), sizeof(DataHeader))});
    }
  }

  /// Runs what is collective; where it fails nothing is left.
  template <class Body>
  void attempt(const Body& body) {
    try {
      body();
    } catch (const AgreedError&) {
      clean_up();
      throw;
    }
  }
  World& world() const { return state_.world; }
  std::string folder() const { return step_folder(root_, step_); }

  /// The first rank's changes are all made in the folder that it opens here.
  void begin() {
    if (!is_first()) return;
    opened_root_ = io_.make_folder(root_);
    if (opened_root_.type_of(name_) != 0)
      throw Error(ExitCode::cannot_create, "this checkpoint is already there", folder(), "move it elsewhere");
    const std::string above = std::filesystem::absolute(root_).parent_path().string();
    io_.sync_folder(Folder::open(above, Folder::Links::followed));
    io_.remove_folder(opened_root_, writing_);
    opened_ = io_.make_folder(opened_root_, writing_);
  }

  /// Copies what this rank writes, one segment after the other.
  void copy(const Buffer& held) const {
    std::int64_t at = 0;
    reader().for_each([&](const SavedSegment&, const Buffer& data) {
      std::memcpy(held.slice(at, data.bytes()).data, data.data, static_cast<std::size_t>(data.bytes()));
      at += data.bytes();
    });
  }

  void write() {
    write_file([&](DataFileWriter& file) {
      reader().for_each([&](const SavedSegment& segment, const Buffer& data) {
        if (file.position() < segment.offset) file.pad_to(segment.offset);
        file.append(data.data, data.bytes());
      });
    });
  }

  /// Writes what was copied, by any thread, until `is_dropped`.
  void write(const Buffer& held, const std::atomic<bool>& is_dropped) {
    const std::vector<std::int64_t> element_bytes = manifest_.element_bytes();
    write_file([&](DataFileWriter& file) {
      std::int64_t at = 0;
      for (const SavedSegment& segment : segments()) {
        file.pad_to(segment.offset);
        const std::int64_t end = at + segment.elems() * element_bytes[static_cast<std::size_t>(segment.tensor)];
        for (; at < end; at += std::min(end - at, DataFileWriter::kBlockBytes)) {
          if (is_dropped) throw std::runtime_error("the save was dropped");
          const Buffer block = held.slice(at, std::min(end - at, DataFileWriter::kBlockBytes));
          file.append(block.data, block.bytes());
        }
      }
    });
  }

  void commit() {
    gather_digests();
    together(world(), [&] { write_manifest(); });
  }

 private:
  bool is_first() const { return state_.world.rank() == 0; }
  const std::vector<SavedSegment>& segments() const {
    return manifest_.files.at(static_cast<std::size_t>(state_.world.rank())).segments;
  }
  ShardReader reader() const { return {state_.executor, tensors_, segments()}; }

  template <class Fill>
  void write_file(const Fill& fill) {
    DataHeader header;
    header.rank = state_.world.rank();
    header.ranks = state_.world.size();
    header.step = step_;
    header.data_bytes = data_end(segments(), manifest_.element_bytes(), sizeof header);
    if (!is_first()) opened_ = Folder::open(root_).folder(writing_);
    DataFileWriter file(opened_, data_file_name(static_cast<std::size_t>(header.rank)), header, io_.watch());
    fill(file);
    file.pad_to(header.data_bytes);
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

  void write_manifest() const {
    if (!is_first()) return;
    for (std::size_t rank = 0; rank < manifest_.files.size(); ++rank) {
      const File file = opened_.file(data_file_name(rank), O_RDONLY);
      if (!file.is_open() || file.bytes() != manifest_.files[rank].bytes)
        throw Error(ExitCode::io, "what one rank wrote another does not find", opened_.path_of(data_file_name(rank)),
                    "save where all hosts see the same files");
    }
    const std::string text = to_text(manifest_);
    FileWriter file(opened_, kManifestFile, static_cast<std::int64_t>(text.size()), io_.watch());
    file.write(text.data(), text.size());
    file.finish();
    io_.sync_folder(opened_);
    io_.rename(opened_root_, writing_, name_);
    io_.sync_folder(opened_root_);
  }

  /// Cleans up as far as it goes: the error that is under way says more.
  void clean_up() const noexcept {
    if (!is_first() || !opened_root_.is_open()) return;
    try {
      io_.remove_folder(opened_root_, writing_);
    } catch (const std::exception&) {  // the folder is ignored by its name, and removed by the next save that succeeds
    }
  }

  TrainingState state_;
  std::string root_;
  std::int64_t step_;
  FolderIo io_;
  std::string name_, writing_;
  Folder opened_root_, opened_;  // the first rank's, and this rank's with the suffix of one that is being written
  std::vector<HeldTensor> tensors_;
  CheckpointManifest manifest_;
  std::int64_t bytes_ = 0;
  std::uint64_t digest_ = 0;
};

std::string save(const TrainingState& state, const std::string& root, const CheckpointInfo& info, FileWatch* watch) {
  state.executor.step().check_between_steps("save()");
  state.executor.deferred_updates().settle();
  state.executor.context().device().synchronize();
  CheckpointSaver saver(state, root, info, watch);
  saver.attempt([&] {
    together(state.world, [&] { saver.begin(); });
    together(state.world, [&] { saver.write(); });
    saver.commit();
  });
  return saver.folder();
}

struct BackgroundSave::State {
  State(const TrainingState& state, const std::string& root, const CheckpointInfo& info, FileWatch* watch)
      : saver(state, root, info, watch) {}
  CheckpointSaver saver;
  std::atomic<bool> is_dropped = false, is_writing = true;
  std::exception_ptr failed = nullptr;  // the thread's, until it was joined
  double writing_s = 0;                 // as well
  std::thread thread = {};

  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    is_dropped = true;
    if (thread.joinable()) thread.join();
  }
  void write(const Buffer& held) noexcept {
    const auto begin = std::chrono::steady_clock::now();
    try {
      saver.write(held, is_dropped);
    } catch (...) {
      failed = std::current_exception();
    }
    writing_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    is_writing = false;
  }
};

std::int64_t BackgroundSave::held_bytes(const Executor& executor, const Optimizer& optimizer, bool with_frozen) {
  std::int64_t elems = 0, bytes = 0;
  for (std::size_t unit = 0; unit < executor.units().size(); ++unit) {
    if (executor.units()[unit].is_frozen && !with_frozen) continue;
    elems += executor.units()[unit].layout->held_elems();
    bytes += optimizer.state_bytes(unit);
  }
  for (const Parameter* parameter : executor.ignored()) elems += parameter->numel();
  return bytes + elems * size_of(DType::f32);
}

BackgroundSave::BackgroundSave(const TrainingState& state, const std::string& root, const CheckpointInfo& info,
                               FileWatch* watch, const Buffer& held) {
  state.executor.step().check_between_steps("a BackgroundSave");
  state.executor.deferred_updates().settle();
  state.executor.context().device().synchronize();
  state_ = std::make_unique<State>(state, root, info, watch);
  state_->saver.attempt([&] {
    together(state.world, [&] { state_->saver.begin(); });
    together(state.world, [&] { state_->saver.copy(held); });
    together(state.world, [&] { state_->thread = std::thread([own = state_.get(), held] { own->write(held); }); });
  });
}

BackgroundSave::~BackgroundSave() = default;

bool BackgroundSave::is_writing() const { return state_->is_writing; }

double BackgroundSave::writing_s() const { return state_->writing_s; }

std::string BackgroundSave::finish() {
  if (state_->thread.joinable()) state_->thread.join();
  state_->saver.attempt([&] {
    together(state_->saver.world(), [&] {
      if (state_->failed) std::rethrow_exception(state_->failed);
    });
    state_->saver.commit();
  });
  return state_->saver.folder();
}

}  // namespace zs
