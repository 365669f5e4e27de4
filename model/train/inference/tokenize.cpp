#include "model/train/inference/tokenize.h"
#include "model/train/rank/print.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <limits>

#include "model/data/data_files.h"
#include "model/data/file_format.h"
#include "model/data/output_file.h"
#include "model/tokenizer/document_encoder.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/base/check.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/units.h"
#include "runtime/device/cpu_topology.h"

namespace zs {
namespace {

using Ids = std::vector<std::int32_t>;

/// Every file that the arguments stand for, those of an argument in the order of their paths.
std::vector<std::string> find_inputs(const std::vector<std::string>& inputs) {
  std::vector<std::string> files;
  for (const std::string& input : inputs) {
    try {
      const auto found = find_data_files({input}, {""}, "");
      files.insert(files.end(), found.begin(), found.end());
    } catch (const Error& error) {
      throw Error(error.code(), error.what_happened(), error.where(), "name files, patterns or folders with text");
    }
  }
  return files;
}

/// One token file. Narrow ids have no header, unless a reader would take the file for another kind by its first bytes.
/// The number of ids in a header is written last.
class TokenWriter {
 public:
  TokenWriter(const std::string& path, std::int64_t vocab)
      : path_(path), vocab_(vocab), is_wide_(vocab > kNarrowVocab), file_(path, OutputRule{}) {}
  std::int64_t count() const { return count_; }
  std::string layout() const {
    return fmt::format("uint{}{}", is_wide_ ? 32 : 16, has_header_ ? " with llm.c's header" : "");
  }

  void write(const Ids& ids) {
    count_ += static_cast<std::int64_t>(ids.size());
    if (is_wide_) {
      append(ids.data(), ids.size() * sizeof(std::int32_t));
    } else {
      const std::vector<std::uint16_t> narrow(ids.begin(), ids.end());
      append(narrow.data(), narrow.size() * sizeof(std::uint16_t));
    }
    if (has_header_ && count_ > std::numeric_limits<std::int32_t>::max())
      throw Error(ExitCode::dataset, "the texts have more than 2147483647 tokens, which llm.c's header cannot count",
                  path_, "write them to several files");
  }
  void commit() {
    if (!is_begun_) begin(static_cast<std::int64_t>(head_.size()));
    if (has_header_) file_.overwrite(0, header().data(), kHeaderBytes);
    file_.commit();
  }

 private:
  static constexpr std::int64_t kNarrowVocab = 65536, kLarge = std::int64_t{1} << 40;
  static constexpr std::size_t kHeaderWords = 256, kHeaderBytes = kHeaderWords * 4;

  void append(const void* data, std::size_t bytes) {
    if (is_begun_) {
      file_.write(data, bytes);
      return;
    }
    head_.append(static_cast<const char*>(data), bytes);
    if (head_.size() >= FileHead::kBytes) begin(kLarge);
  }
  /// Writes what has come so far, after a header where there is to be one.
  void begin(std::int64_t file_bytes) {
    is_begun_ = true;
    has_header_ = is_wide_ || !is_recognized(file_bytes);
    if (has_header_) file_.write(header().data(), kHeaderBytes);
    file_.write(head_.data(), head_.size());
  }
  bool is_recognized(std::int64_t file_bytes) const {
    try {
      const std::string_view head = std::string_view(head_).substr(0, FileHead::kBytes);
      return recognize({DataKind::tokens, vocab_, sizeof(std::uint16_t)}, {head, file_bytes, path_}).header_bytes == 0;
    } catch (const Error&) {
      return false;
    }
  }
  std::array<std::int32_t, kHeaderWords> header() const {
    return {is_wide_ ? 20240801 : 20240520, is_wide_ ? 7 : 1, static_cast<std::int32_t>(count_)};
  }

  std::string path_;
  std::int64_t vocab_;
  bool is_wide_, is_begun_ = false, has_header_ = false;
  OutputFile file_;
  std::string head_;  // until the beginning is written
  std::int64_t count_ = 0;
};

}  // namespace

void tokenize_files(const TokenizeJob& job) {
  const auto begin = std::chrono::steady_clock::now();
  const auto tokenizer = open_tokenizer(job.tokenizer);
  const std::vector<std::string> files = find_inputs(job.inputs);
  const int threads = std::min(cpu_share(0, 1).threads, static_cast<int>(std::min<std::size_t>(files.size(), 1024)));
  TokenWriter writer(job.out, tokenizer->vocab_size());
  const std::int64_t text_bytes =
      encode_documents(*tokenizer, files, threads, job.special, [&](const Ids& ids) { writer.write(ids); });
  if (writer.count() == 0)
    throw Error(ExitCode::dataset, "the texts have no tokens", job.inputs.front(),
                "name files, patterns or folders with text");
  writer.commit();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  print_to_stdout("{}: {} tokens ({}) of {} from {}, {}, {:.1f} MB/s\n", job.out, writer.count(), writer.layout(),
                  format_number(static_cast<std::int64_t>(files.size()), "file"), format_bytes(text_bytes),
                  format_number(threads, "thread"), static_cast<double>(text_bytes) * 1e-6 / seconds);
}

}  // namespace zs
