#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zs {

/// Question of an evaluation task, a line of its file. With choices the model chooses the one that it finds most
/// likely; without, it generates an answer.
struct TaskLine {
  std::string prompt;
  std::vector<std::string> choices = {};  ///< none of them empty; none: the answer is generated
  std::size_t right = 0;                  ///< index of the right choice
  std::string delimiter = " ";            ///< text between prompt and choice
  std::string answer = {};                ///< text that a generated one must equal
  std::vector<std::string> until = {};    ///< texts that end a generated one, and do not belong to it
  std::optional<std::int64_t> max_tokens = {};
  std::string where = {};  ///< "file:line"
};

/// Evaluation task: the lines of a file, all with choices or all without.
struct Task {
  std::string name;  ///< the file's, without folder and ending
  std::vector<TaskLine> lines;
  std::uint64_t digest = 0;  ///< hash of the file's text

  bool has_choices() const { return !lines.front().choices.empty(); }
};

/// True if the first line of the file is a JSON object with the fields of a task: `choices`, or `prompt` and `answer`.
/// Where `field`, which holds the text of data (data.field; empty: none does), is `answer`, prompt and answer alone are
/// data. Never throws: a file that cannot be read is none.
bool is_task_file(const std::string& path, const std::string& field);

/// Reads a task. Error(dataset) that names file and line: for a line that is no JSON object or lacks a field, and for
/// fields of the one form in a line of the other.
Task read_task(const std::string& path);

}  // namespace zs
