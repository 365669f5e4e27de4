#include "model/train/inference/evaluate.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/data/bad_data.h"
#include "model/data/data_digest.h"
#include "model/data/data_files.h"
#include "model/data/part_file.h"
#include "model/data/read_ahead.h"
#include "model/train/config/config_dataset.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/print.h"
#include "model/train/rank/stop_signal.h"
#include "runtime/tensor/host_view.h"

namespace zs {
namespace {

using Batch = EvaluationBatches::Batch;

/// Data that is evaluated: tokens that follow each other, or documents.
struct EvaluationData {
  std::shared_ptr<const Corpus> corpus;
  std::int64_t first = 0, count = 0;
  std::optional<SampleSource> documents;

  /// Number of tokens, and below the digest, for EvaluationBatches.
  std::int64_t tokens() const { return documents ? documents->windows() * documents->sequence() + 1 : count; }
  std::string digest() const { return documents ? documents->digest() : digest_of(*corpus, first, count); }
  SampleBatch read(const Batch& batch) const;
  /// Number of targets of a micro-batch that count.
  std::int64_t counted(const Batch& batch) const;
};

SampleBatch EvaluationData::read(const Batch& batch) const {
  if (documents) return documents->read(batch.first / documents->sequence(), batch.rows);
  SampleBatch samples;
  samples.inputs.resize(static_cast<std::size_t>(batch.targets()));
  samples.targets.resize(samples.inputs.size());
  corpus->read(first + batch.first, batch.targets(), samples.inputs.data());
  corpus->read(first + batch.first + 1, batch.targets(), samples.targets.data());
  return samples;
}

std::int64_t EvaluationData::counted(const Batch& batch) const {
  if (!documents) return batch.targets();
  const SampleBatch samples = read(batch);
  return batch.targets() - std::count(samples.targets.begin(), samples.targets.end(), kIgnoredTarget);
}

EvaluationData documents_of(SampleSource source) { return {source.shared_corpus(), 0, source.tokens(), source}; }

EvaluationData open_data(const World& world, const Config& config, const EvaluateRequest& request) {
  DatasetOptions options = dataset_options(config, "", request.program_folder);
  const bool are_documents = options.documents.format != DocumentFormat::stream;
  if (options.documents.format == DocumentFormat::preference)
    throw Error(ExitCode::config, "data.format is \"preference\", and evaluate measures texts", "data.format",
                "set data.format to that of the files, such as --set data.format=chat");
  if (are_documents && !request.logits.empty())
    throw Error(ExitCode::config, fmt::format("data.format is \"{}\", and logits are of one text", config.data.format),
                "--logits", "leave it out");
  if (options.kind == DataKind::text) open_text(config, options);
  options.threads = cpu_share(world.local_rank(), world.local_size()).threads;
  if (!request.files.empty()) {
    options.folders = {""};
    if (are_documents) {
      options.train = request.files;
      options.weights.clear();
      options.validation.clear();
      options.validation_fraction = 0;
      return documents_of(open_dataset(options).train);
    }
    auto corpus = open_corpus(options, request.files);
    const std::int64_t count = corpus->tokens();
    return {std::move(corpus), 0, count, {}};
  }
  const Dataset data = open_dataset(options);
  if (!data.validation)
    throw bad_data("the run has no validation data", data.files.front(), "name a file: train evaluate RUN FILE");
  if (are_documents) return documents_of(*data.validation);
  return {data.validation->shared_corpus(), data.validation->first(), data.validation->tokens(), {}};
}

/// Collective: 0, or 72 where ranks have other data than the first.
int agree_on_data(World& world, const EvaluationData& data) {
  const std::string own = fmt::format("{} tokens, digest {}", data.count, data.digest());
  const std::string first = world.agree(world.rank() == 0 ? 1 : 0, own).message;
  return agreed(world, [&] {
    if (own != first)
      throw Error(ExitCode::ranks_disagree,
                  fmt::format("the ranks differ: this one's data has {}, rank 0's {}", own, first),
                  data.corpus->files().front(), "give every rank the same data");
  });
}

/// One micro-batch of each rank at a time.
class Evaluation {
 public:
  /// Gets the logits of a micro-batch's targets from `first` on.
  using UseLogits = LanguageModel::UseLogits;

  explicit Evaluation(Session& session)
      : session_(session),
        losses_(Tensor::empty(context(), {session.runtime().executor().loss_comm().size()}, DType::f32, "scalars")) {}

  /// Every rank's mean loss, once the device has done it. Collective. `use` null: no logits are made.
  void enqueue(const Batch& batch, SampleBatch samples, const UseLogits& use) {
    const NoGradGuard no_grad(context());
    ShardedRuntime& runtime = session_.runtime();
    const Shape shape{batch.rows, batch.length};
    const Tensor inputs = Tensor::from_host(context(), shape, std::move(samples.inputs));
    const Tensor targets = Tensor::from_host(context(), shape, std::move(samples.targets));
    LossOptions options{.seed = {}, .chunk = session_.config().train.loss_chunk};
    Documents documents;
    if (!samples.lengths.empty()) {
      options.ignored = kIgnoredTarget;
      documents = Documents(samples.lengths);
    }
    runtime.begin_micro_batch(Mode::eval, true);
    const Tensor loss = use ? session_.model().loss_and_logits(inputs, targets, options.chunk, use)
                            : session_.model().loss(inputs, targets, options, documents);
    runtime.end_micro_batch();
    runtime.executor().loss_comm().all_gather(context().stream(), "losses", loss.buffer(), losses_.buffer());
  }
  /// Losses in the order of ranks. Waits for the device.
  std::vector<float> losses() const { return losses_.to_host(); }

 private:
  Context& context() const { return session_.runtime().context(); }

  Session& session_;
  Tensor losses_;  // (ranks)
};

/// Enqueues what the device is planned for: each shape twice, since the second of equals finds other memory.
void enqueue_shapes(Session& session, const EvaluationBatches& batches, bool has_logits) {
  Evaluation evaluation(session);
  const auto use = has_logits ? Evaluation::UseLogits([](std::int64_t, const Tensor&) {}) : nullptr;
  for (const Batch& batch : batches.shapes()) {
    SampleBatch samples;
    samples.inputs.resize(static_cast<std::size_t>(batch.targets()));
    samples.targets.resize(samples.inputs.size());
    if (session.config().data.format != "stream" && batch.length > 1)
      samples.lengths.assign(static_cast<std::size_t>(batch.rows), batch.length);
    for (int i = 0; i < 2; ++i) evaluation.enqueue(batch, samples, use);
  }
}

/// The file of the logits, row by row as the targets follow each other.
class LogitsFile {
 public:
  /// Collective: 0, or the exit code of all ranks.
  int open(World& world, const std::string& path, std::int64_t vocab) {
    vocab_ = vocab;
    if (const int code = agreed(world,
                                [&] {
                                  if (world.rank() == 0) file_.emplace(PartFile::create(path));
                                });
        code != 0)
      return code;
    const std::string temporary = world.agree(world.rank() == 0 ? 1 : 0, file_ ? file_->temporary() : "").message;
    return agreed(world, [&] {
      if (world.rank() != 0) file_.emplace(PartFile::open(path, temporary));
    });
  }
  bool is_open() const { return file_.has_value(); }

  /// Rows from `first` on, without what pads them.
  void write(std::int64_t first, const Tensor& logits) {
    const std::vector<float> padded = logits.to_host();
    const std::int64_t rows = logits.shape()[0], stride = logits.shape()[1];
    rows_.resize(static_cast<std::size_t>(rows * vocab_));
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(padded.data() + row * stride, vocab_, rows_.data() + row * vocab_);
    file_->write(first * vocab_ * size_of(DType::f32), rows_.data(), rows_.size() * sizeof(float));
  }
  /// Collective.
  int publish(World& world) {
    if (const int code = agreed(world, [&] { file_->finish(); }); code != 0) return code;
    return agreed(world, [&] {
      if (world.rank() == 0) file_->publish();
    });
  }

 private:
  std::optional<PartFile> file_;
  std::int64_t vocab_ = 0;
  std::vector<float> rows_;
};

/// Sum over all targets, in the order of micro-batches, whoever computes them.
struct Sum {
  double loss = 0;
  std::int64_t targets = 0;
};

class Evaluator {
 public:
  Evaluator(Inference& inference, EvaluationData data, const EvaluationBatches& batches, LogitsFile& logits)
      : inference_(inference),
        data_(std::move(data)),
        batches_(batches),
        logits_(logits),
        evaluation_(inference.session()) {}

  /// Collective: 0, or the exit code of all ranks.
  int run() {
    World& world = inference_.world();
    const DataShare share = inference_.session().runtime().data_share();
    for (std::int64_t first = 0; first < batches_.count(); first += share.count) {
      inference_.watch().enter(first == 0 ? Phase::first_step : Phase::step, first / share.count + 1);
      SampleBatch samples;
      const std::int64_t own = first + share.index;
      const Batch batch = own < batches_.count() ? batches_.at(own) : Batch{};
      if (const int code = agreed(world, [&] { samples = read(own < batches_.count(), batch); }); code != 0)
        return code;
      if (const int code = compute(own < batches_.count(), batch, std::move(samples)); code != 0) return code;
      const std::vector<float> losses = evaluation_.losses();
      for (std::int64_t i = first; i < std::min(first + share.count, batches_.count()); ++i) {
        const std::int64_t targets = data_.counted(batches_.at(i));
        sum_.loss += losses[static_cast<std::size_t>(i - first)] * static_cast<double>(targets);
        sum_.targets += targets;
      }
    }
    return 0;
  }
  const Sum& sum() const { return sum_; }

 private:
  /// A rank that has none left takes part with a token that does not count.
  SampleBatch read(bool is_counted, const Batch& batch) const {
    if (is_stop_requested()) throw Error(ExitCode::stopped, "stopped on request", "", "nothing was changed");
    const StatusScope status(inference_.watch().watchdog(), "reading data", StatusScope::Host::works);
    return is_counted ? data_.read(batch) : SampleBatch{{0}, {0}, {}};
  }

  int compute(bool is_counted, const Batch& batch, SampleBatch samples) {
    if (!logits_.is_open()) {
      evaluation_.enqueue(batch, std::move(samples), nullptr);
      return 0;
    }
    // The disk's problem: the other ranks are in the midst of a forward, and learn of it after that.
    std::optional<Error> problem;
    evaluation_.enqueue(batch, std::move(samples), [&](std::int64_t first, const Tensor& logits) {
      try {
        if (is_counted && !problem) logits_.write(batch.first + first, logits);
      } catch (const Error& error) {
        if (error.code() != ExitCode::io) throw;
        problem = error;
      }
    });
    return agreed(inference_.world(), [&] {
      if (problem) throw *problem;
    });
  }

  Inference& inference_;
  EvaluationData data_;
  const EvaluationBatches& batches_;
  LogitsFile& logits_;
  Evaluation evaluation_;
  Sum sum_;
};

/// Prints the result, on one rank.
int print_result(const Inference& inference, const Sum& sum) {
  const double loss = sum.loss / static_cast<double>(sum.targets);
  print_to_stdout("loss {:.8f} perplexity {:.6g} tokens {}\n", loss, std::exp(loss), sum.targets);
  if (std::isfinite(loss)) return inference.end(false);
  const Error error(ExitCode::non_finite, "the loss is not finite", "", "look at the weights and at the data");
  print_to_stderr("{}\n", error_line(error));
  return static_cast<int>(error.code());
}

}  // namespace

EvaluationBatches::EvaluationBatches(std::int64_t tokens, std::int64_t sequence, std::int64_t rows)
    : targets_(tokens - 1), sequence_(sequence), rows_(rows) {
  ZS_CHECK(tokens >= 2 && sequence >= 1 && rows >= 1, "{} tokens in windows of {}, {} at a time", tokens, sequence,
           rows);
  const std::int64_t windows = targets_ / sequence;
  full_ = windows / rows;
  left_ = windows % rows;
  rest_ = targets_ % sequence;
}

EvaluationBatches::Batch EvaluationBatches::at(std::int64_t i) const {
  ZS_CHECK(i >= 0 && i < count(), "micro-batch {} of {}", i, count());
  if (i < full_) return {i * rows_ * sequence_, rows_, sequence_};
  if (i == full_ && left_ > 0) return {full_ * rows_ * sequence_, left_, sequence_};
  return {targets_ - rest_, 1, rest_};
}

std::vector<EvaluationBatches::Batch> EvaluationBatches::shapes() const {
  std::vector<Batch> shapes;
  if (full_ > 0) shapes.push_back(at(0));
  for (std::int64_t i = full_; i < count(); ++i) shapes.push_back(at(i));
  shapes.emplace_back();  // shape of a rank that has none left
  return shapes;
}

int evaluate(Inference& inference, const EvaluateRequest& request) {
  World& world = inference.world();
  const Config& config = inference.config();
  EvaluationData data;
  const auto open = [&] {
    data = open_data(world, config, request);
    if (data.count < 2)
      throw bad_data(fmt::format("the data has {} tokens, and a loss needs 2", data.count),
                     data.corpus->files().front(), "name a file with text");
    if (data.documents && !data.documents->has_targets())
      throw bad_data("no token of these documents is a target", data.corpus->files().front(), kNoTargets);
  };
  if (const int code = agreed(world, open); code != 0) return code;
  if (const int code = agree_on_data(world, data); code != 0) return code;
  const EvaluationBatches batches(data.tokens(), config.train.sequence, config.train.micro_batch);
  LogitsFile logits;
  if (!request.logits.empty()) {
    if (const int code = logits.open(world, request.logits, config.model.vocab); code != 0) return code;
  }
  if (const int code = inference.start([&](Session& session) { enqueue_shapes(session, batches, logits.is_open()); });
      code != 0)
    return code;
  Evaluator evaluator(inference, std::move(data), batches, logits);
  if (const int code = evaluator.run(); code != 0) return code;
  inference.watch().enter(Phase::ending);
  if (logits.is_open()) {
    if (const int code = logits.publish(world); code != 0) return code;
  }
  return inference.is_first() ? print_result(inference, evaluator.sum()) : 0;
}

}  // namespace zs
