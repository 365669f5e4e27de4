#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/train/report/run_record.h"

namespace zs {

/// The page that shows a run: one file that needs no other and no network. `written_s`: since 1970, when it is as it
/// says.
std::string report_page(const RunRecord& record, std::int64_t written_s);

/// The page without its numbers: `data` is the JSON of what it shows.
std::string page_of(std::string_view title, std::string_view data);

}  // namespace zs
