#include "model/tokenizer/document_encoder.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "model/tokenizer/utf8.h"
#include "runtime/base/check.h"
#include "runtime/base/file.h"

namespace zs {
namespace {

struct Document {
  std::vector<std::int32_t> ids;
  std::optional<std::int32_t> end;  // end-of-text token between it and the next
  std::int64_t text_bytes = 0;
  std::exception_ptr problem;
};

/// Encodes files on several threads and hands them out in order. A thread waits before it is `kAhead` files ahead of
/// the reader, for whom memory is kept. One thread calls next().
class DocumentEncoder {
 public:
  DocumentEncoder(const Tokenizer& tokenizer, const std::vector<std::string>& files, int threads, SpecialTokens special)
      : tokenizer_(tokenizer),
        frame_(tokenizer, special),
        files_(files),
        ahead_(2 * static_cast<std::size_t>(threads)),
        done_(files.size()) {
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~DocumentEncoder() { stop(); }
  DocumentEncoder(const DocumentEncoder&) = delete;
  DocumentEncoder& operator=(const DocumentEncoder&) = delete;

  /// The next file's ids. Throws what its thread threw.
  Document next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_[taken_].has_value(); });
    Document document = std::move(*done_[taken_]);
    done_[taken_++].reset();
    changed_.notify_all();
    if (document.problem) std::rethrow_exception(document.problem);
    return document;
  }

 private:
  void stop() noexcept {
    {
      const std::lock_guard lock(mutex_);
      is_stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void work() {
    std::unique_ptr<Tokenizer::Encoder> encoder;
    for (;;) {
      std::size_t index = 0;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_stopped_ || started_ == files_.size() || started_ < taken_ + ahead_; });
        if (is_stopped_ || started_ == files_.size()) return;
        index = started_++;
      }
      Document document;
      try {
        if (!encoder) encoder = tokenizer_.make_encoder();
        encode(index, *encoder, document);
      } catch (...) {
        document.problem = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      done_[index] = std::move(document);
      changed_.notify_all();
    }
  }

  void encode(std::size_t index, Tokenizer::Encoder& encoder, Document& document) {
    const std::string text = read_text_file(files_[index]);
    document.text_bytes = static_cast<std::int64_t>(text.size());
    if (text.empty()) return;
    try {
      frame_.encode(encoder, "", text, document.ids);
      document.end = frame_.end_behind(text, document.ids);
    } catch (const Error& error) {
      throw Error(error.code(), error.what_happened(),
                  files_[index] + (error.where().empty() ? "" : ", " + error.where()), error.what_to_do());
    }
  }

  const Tokenizer& tokenizer_;
  const DocumentFrame frame_;
  const std::vector<std::string>& files_;
  const std::size_t ahead_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::size_t started_ = 0, taken_ = 0;
  bool is_stopped_ = false;
  std::vector<std::optional<Document>> done_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::string read_text_file(const std::string& path) {
  const auto fail = [&](int reason) {
    return Error(ExitCode::dataset, "cannot read the file: " + system_reason(reason), path,
                 "check path and permissions");
  };
  const File file = File::open(path, O_RDONLY);
  if (!file.is_open()) throw fail(file.error());
  if (!file.is_regular()) throw fail(EINVAL);
  std::string text(static_cast<std::size_t>(file.bytes()), '\0');
  const File::Count count = file.read_at(0, text.data(), text.size());
  if (count.error != 0) throw fail(count.error);
  text.resize(count.bytes);  // the file may have become shorter
  return text;
}

std::int64_t DocumentFrame::encode(Tokenizer::Encoder& encoder, std::string_view prompt, std::string_view text,
                                   std::vector<std::int32_t>& out) const {
  const std::size_t begin = out.size();
  std::int64_t prompt_ids = 0;
  if (!prompt.empty()) {
    encoder.encode(prompt, false, out);
    add_front(out, begin);
    prompt_ids = std::ssize(out) - static_cast<std::int64_t>(begin);
  }
  encoder.encode(text, false, out);
  if (prompt.empty()) add_front(out, begin);
  const std::vector<std::int32_t>& behind = tokenizer_.frame().behind;
  const bool has_them = special_ == SpecialTokens::automatic && out.size() - begin >= behind.size() &&
                        std::equal(behind.rbegin(), behind.rend(), out.rbegin());
  if (special_ != SpecialTokens::none && !has_them && !ends_itself(text, out))
    out.insert(out.end(), behind.begin(), behind.end());
  return prompt_ids;
}

void DocumentFrame::add_front(std::vector<std::int32_t>& ids, std::size_t begin) const {
  const std::vector<std::int32_t>& before = tokenizer_.frame().before;
  const auto first = ids.begin() + static_cast<std::ptrdiff_t>(begin);
  const bool has_them = special_ == SpecialTokens::automatic && ids.size() - begin >= before.size() &&
                        std::equal(before.begin(), before.end(), first);
  if (special_ != SpecialTokens::none && !has_them) ids.insert(first, before.begin(), before.end());
}

bool DocumentFrame::ends_itself(std::string_view text, const std::vector<std::int32_t>& ids) const {
  const auto end = tokenizer_.end_of_text();
  if (!end || special_ != SpecialTokens::automatic) return false;
  const std::string name = tokenizer_.id_to_token(*end).value_or("");
  return !name.empty() && text.substr(0, space_at_end(text)).ends_with(name) &&
         std::find(ids.rbegin(), ids.rend(), *end) != ids.rend();
}

std::optional<std::int32_t> DocumentFrame::end_behind(std::string_view text,
                                                      const std::vector<std::int32_t>& ids) const {
  const auto end = tokenizer_.end_of_text();
  const bool has_it = end && ((!ids.empty() && ids.back() == *end) || ends_itself(text, ids));
  return special_ == SpecialTokens::none || has_it ? std::nullopt : end;
}

std::int64_t encode_documents(const Tokenizer& tokenizer, const std::vector<std::string>& files, int threads,
                              SpecialTokens special,
                              const std::function<void(const std::vector<std::int32_t>& ids)>& take) {
  DocumentEncoder encoder(tokenizer, files,
                          std::clamp(threads, 1, static_cast<int>(std::clamp<std::size_t>(files.size(), 1, 1024))),
                          special);
  std::int64_t text_bytes = 0;
  std::optional<std::int32_t> end;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const Document document = encoder.next();
    text_bytes += document.text_bytes;
    if (document.ids.empty()) continue;
    if (end) take({*end});
    take(document.ids);
    end = document.end;
  }
  return text_bytes;
}

}  // namespace zs
