#pragma once

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace zs::test {

/// Every name that the sources give to an op of runtime or model: launch({"gelu", ..., zero(stream, "zero_unused", ....
inline std::set<std::string> names_in_sources() {
  const std::regex op(
      R"((?:launch|enqueue|launch_on_host)\(\s*(?:context_?, )?\{"([a-z_]+)|zero\([a-z_.()]*, "([a-z_]+)\"|)"
      // ... and what makes an op of one map or reduction: computed("mul", ...
      R"((?:binary|compared|computed|copied|linear_in|map_into|mask_of|product|reduced|same)\(\s*"([a-z_]+)\"|)"
      R"(unary\(\s*"[a-z_]+",\s*"([a-z_]+)\")");
  std::set<std::string> names;
  for (const char* folder : {"/runtime/tensor", "/runtime/shard", "/model"}) {
    for (const auto& file : std::filesystem::recursive_directory_iterator(std::string(ZSHARD_SOURCE_ROOT) + folder)) {
      const std::filesystem::path name = file.path().filename();
      if (name.extension() != ".cpp" || name == "ceiling.cpp" || name == "update_choice.cpp")
        continue;  // measurements, not part of a step
      std::stringstream text;
      text << std::ifstream(file.path()).rdbuf();
      const std::string source = text.str();
      for (std::sregex_iterator at(source.begin(), source.end(), op), end; at != end; ++at)
        names.insert((*at)[1].str() + (*at)[2].str() + (*at)[3].str() + (*at)[4].str());
    }
  }
  return names;
}

}  // namespace zs::test
