#include "model/train/inference/chat_run.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <tuple>

#include "model/chat/chat_template.h"
#include "model/json/strict_json.h"
#include "model/tokenizer/tokenizer.h"
#include "model/train/inference/line_input.h"
#include "model/train/rank/agreed.h"
#include "model/train/rank/error_line.h"
#include "model/train/rank/print.h"
#include "model/train/rank/program.h"
#include "model/train/rank/stop_signal.h"
#include "model/train/session/sample.h"
#include "model/weights/end_tokens.h"

namespace zs {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kAnswerTokens = 1024;

/// Messages so far, and the tokens that they are. Alike on every rank.
class Dialogue {
 public:
  Dialogue(const Config& config, const std::string& model_folder, const std::string& system) : config_(config) {
    if (config.data.tokenizer.empty())
      throw Error(ExitCode::config, "there is no tokenizer, and so no chat template", "--chat",
                  "name a folder that has both with --set data.tokenizer=FOLDER");
    tokenizer_ = open_tokenizer(config.data.tokenizer);
    template_ = open_chat_template(config.data.tokenizer, config.data.chat_template);
    if (!system.empty()) add("system", system);
    fixed_ = messages_.size();
    add("user", "x");
    prompt();  // a template that refuses this refuses every chat
    find_ends(model_folder);
    drop_last();
  }

  void add(const char* role, const std::string& text) { messages_.push_back({{"role", role}, {"content", text}}); }
  void drop_last() { messages_.erase(messages_.size() - 1); }

  /// Tokens of all messages, and of the beginning of an answer. Error(dataset) of a template that refuses them.
  Ids prompt() const {
    Ids ids;
    tokenizer_->make_encoder()->encode(template_->begin_answer(line()), false, ids);
    const auto unknown =
        std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return id >= config_.model.vocab; });
    if (unknown != ids.end())
      throw Error(
          ExitCode::config,
          fmt::format("the chat template makes token {}, outside the vocabulary of {}", *unknown, config_.model.vocab),
          "--chat", "use the model's own tokenizer");
    return ids;
  }

  /// The tokens of prompt(), without the oldest turns where all leave no room for an answer of `room` tokens; how many
  /// were left out.
  std::pair<Ids, int> fitting_prompt(std::int64_t room) {
    const std::int64_t most = config_.train.sequence;
    for (int forgotten = 0;; ++forgotten) {
      Ids ids = prompt();
      if (std::ssize(ids) + std::min(room, most / 4) <= most) return {std::move(ids), forgotten};
      if (messages_.size() < fixed_ + 3)
        throw Error(ExitCode::dataset,
                    fmt::format("the message makes {} tokens, and the model sees {}", ids.size(), most), "",
                    "write a shorter one, or set train.sequence to more");
      const auto oldest = messages_.begin() + static_cast<std::ptrdiff_t>(fixed_);
      messages_.erase(oldest, oldest + 2);
    }
  }

  std::string text_of(const Ids& ids) const { return tokenizer_->decode(ids, true); }
  const Ids& ends() const { return ends_; }

 private:
  std::string line() const { return json_text(nlohmann::json{{"messages", messages_}}, -1); }

  /// The model's own end tokens, and the one with which the template ends a turn.
  void find_ends(const std::string& model_folder) {
    if (!model_folder.empty()) ends_ = end_tokens_of(model_folder);
    if (tokenizer_->end_of_text()) ends_.push_back(*tokenizer_->end_of_text());
    add("assistant", "x");
    try {
      const ChatText chat = template_->render(line(), TrainOn::last);
      const jinja::TextSpan turn = chat.trained.back();
      const Ids ids = tokenizer_->encode(chat.text.substr(turn.begin, turn.end - turn.begin), false);
      const auto last = std::find_if(ids.rbegin(), ids.rend(), [&](auto id) { return tokenizer_->is_special(id); });
      if (last != ids.rend()) ends_.push_back(*last);
    } catch (const Error&) {  // a template that cannot say where a turn ends has the model's end tokens alone
    }
    drop_last();
  }

  const Config& config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
  nlohmann::json messages_ = nlohmann::json::array();
  std::size_t fixed_ = 0;  // messages that are never forgotten
  Ids ends_;
};

/// Prints an answer as it grows, up to the last whole character.
class StreamedText {
 public:
  void show(const std::string& whole) {
    std::size_t end = shown_;
    while (end < whole.size()) {
      const Utf8 next = next_utf8(std::string_view(whole).substr(end));
      if (next.is_cut) break;
      end += next.bytes;
    }
    print(whole, end);
  }
  void end(const std::string& whole) { print(whole, whole.size()); }

 private:
  void print(const std::string& whole, std::size_t end) {
    if (end <= shown_) return;
    write_to_stdout(printable(std::string_view(whole).substr(shown_, end - shown_), prints_utf8()));
    shown_ = end;
  }
  std::size_t shown_ = 0;
};

enum class Turn { none, line, end, stop };

class Chat {
 public:
  Chat(Inference& inference, const ChatRequest& request)
      : inference_(inference),
        world_(inference.world()),
        request_(request),
        tokens_(request.sample.tokens.value_or(kAnswerTokens)),
        is_typed_(world_.agree(inference.is_first() && LineInput::is_terminal() ? 1 : 0, "").code != 0) {}

  int run() {
    const auto prepare = [&] { dialogue_.emplace(inference_.config(), model_folder(), request_.system); };
    if (const int code = agreed(world_, prepare); code != 0) return code;
    if (const int code = inference_.start(TokenWindow::enqueue_longest); code != 0) return code;
    if (is_typed_) interrupt_by_sigint();
    for (;;) {
      std::string text;
      const Turn turn = next_turn(text);
      if (turn == Turn::stop) return inference_.end(true);
      if (turn == Turn::end || text == "/exit") break;
      if (text.empty()) continue;
      if (const int code = answer(text); code != 0 && !is_typed_) return code;
      if (is_stop_requested_anywhere()) return inference_.end(true);
    }
    if (is_typed_ && inference_.is_first()) write_to_stdout("\n");
    inference_.watch().enter(Phase::ending);
    return inference_.end(false);
  }

 private:
  std::string model_folder() const {
    const std::string& folder = inference_.model().folder;
    return folder.empty() ? inference_.config().model.path : folder;
  }
  bool is_stop_requested_anywhere() { return world_.agree(is_stop_requested() ? 1 : 0, "").code != 0; }

  /// The first rank reads, and all ask it some times a second: nobody knows how long somebody thinks.
  Turn next_turn(std::string& text) {
    constexpr int kPoll_ms = 200;
    inference_.watch().enter(Phase::idle);
    if (is_typed_ && inference_.is_first()) write_to_stdout("> ");
    for (;;) {
      Turn own = is_stop_requested() ? Turn::stop : Turn::none;
      if (inference_.is_first() && own == Turn::none) {
        const LineInput::State state = input_.poll(kPoll_ms);
        own = state == LineInput::State::line ? Turn::line : state == LineInput::State::end ? Turn::end : Turn::none;
        if (take_interrupt()) write_to_stdout("\n(/exit ends the chat)\n> ");
      }
      const auto turn = static_cast<Turn>(world_.agree(static_cast<int>(own), "").code);
      if (turn == Turn::line) text = from_first(world_, input_.line());
      if (turn != Turn::none) return turn;
    }
  }

  /// 0, or the code of what was refused: then the turn is as if it had not been.
  int answer(const std::string& text) {
    dialogue_->add("user", text);
    Ids prompt;
    int forgotten = 0;
    const auto prepare = [&] { std::tie(prompt, forgotten) = dialogue_->fitting_prompt(tokens_); };
    if (const int code = agreed(world_, prepare); code != 0) {
      dialogue_->drop_last();
      return code;
    }
    if (forgotten > 0 && inference_.is_first())
      print_note(fmt::format("the oldest {} forgotten, to make room", forgotten == 1 ? "turn is" : "turns are"));
    const std::string said = dialogue_->text_of(draw(prompt));
    said.empty() ? dialogue_->drop_last() : dialogue_->add("assistant", said);  // templates take no empty answer
    return 0;
  }

  Ids draw(const Ids& prompt) {
    using Clock = std::chrono::steady_clock;
    const bool is_shown = inference_.is_first();
    const Config& config = inference_.config();
    inference_.watch().enter(Phase::first_step, ++turns_);
    Ids answer;
    StreamedText stream;
    bool is_interrupted = false;
    SampleTask task{
        .prompt = not_seen(prompt),
        .count = std::min<std::int64_t>(tokens_, config.train.sequence - std::ssize(prompt)),
        .options = {.temperature = request_.sample.temperature,
                    .top_k = request_.sample.top_k,
                    .top_p = request_.sample.top_p,
                    .seed = static_cast<std::uint64_t>(request_.sample.seed.value_or(config.train.seed) + turns_ - 1)},
        .ends = dialogue_->ends()};
    task.stops = [&] {
      const int own = take_interrupt() || is_stop_requested() ? 1 : 0;
      return is_interrupted = world_.agree(own, "").code != 0;
    };
    task.draws = [&](std::int32_t token) {
      answer.push_back(token);
      if (is_shown) stream.show(dialogue_->text_of(answer));
    };
    const auto began = Clock::now();
    const Ids drawn = sample_tokens(*window_, world_, task);
    const double seconds = std::chrono::duration<double>(Clock::now() - began).count();
    seen_ = prompt;
    drawn.empty() ? window_.reset() : void(seen_.insert(seen_.end(), drawn.begin(), drawn.end() - 1));
    const Ids text = without_end(drawn, task);
    if (is_shown) {
      stream.end(dialogue_->text_of(text));
      write_to_stdout("\n");
      const bool is_cut = !is_interrupted && std::ssize(drawn) == task.count && text.size() == drawn.size();
      print_to_stderr("[{} tokens, {:.1f} tokens/s{}]\n", drawn.size(), static_cast<double>(drawn.size()) / seconds,
                      is_interrupted ? ", interrupted"
                      : is_cut       ? ", cut at its limit"
                                     : "");
    }
    return text;
  }

  /// The tokens of a prompt that the window has not seen; all, in a new one, where it has seen others.
  Ids not_seen(const Ids& prompt) {
    const bool goes_on =
        window_ && seen_.size() < prompt.size() && std::equal(seen_.begin(), seen_.end(), prompt.begin());
    if (goes_on) return {prompt.begin() + static_cast<std::ptrdiff_t>(seen_.size()), prompt.end()};
    window_.reset();  // before the memory of the next
    window_.emplace(inference_.session());
    return prompt;
  }

  Inference& inference_;
  World& world_;
  const ChatRequest& request_;
  std::int64_t tokens_;  // most of an answer
  bool is_typed_;        // into the first rank's terminal: the others may have another standard input
  LineInput input_;
  std::optional<Dialogue> dialogue_;
  std::optional<TokenWindow> window_;
  Ids seen_;  // tokens that the window has
  std::int64_t turns_ = 0;
};

}  // namespace

int chat(Inference& inference, const ChatRequest& request) { return Chat(inference, request).run(); }

}  // namespace zs
