#include "model/train/report/report_page.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/job/version.h"

namespace zs {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Six digits are more than a curve shows. Null where it is not finite.
OrderedJson short_number(double value) {
  return std::isfinite(value) ? OrderedJson(std::stod(fmt::format("{:.6g}", value))) : OrderedJson();
}

OrderedJson curve_of(const Series& series) {
  OrderedJson step = OrderedJson::array(), mean = OrderedJson::array(), low = OrderedJson::array(),
              high = OrderedJson::array();
  for (const Series::Point& point : series.points()) {
    step.push_back(point.step);
    mean.push_back(point.count > 0 ? short_number(point.mean()) : OrderedJson());
    low.push_back(point.count > 0 ? short_number(point.min) : OrderedJson());
    high.push_back(point.count > 0 ? short_number(point.max) : OrderedJson());
  }
  OrderedJson curve{{"samples", series.samples_per_point()}, {"step", std::move(step)}, {"mean", std::move(mean)}};
  if (series.samples_per_point() == 1) return curve;
  curve["low"] = std::move(low);
  curve["high"] = std::move(high);
  return curve;
}

OrderedJson last_of(const RunRecord& record) {
  if (!record.last) return {};
  const StepMetrics& last = *record.last;
  return {{"step", last.step},
          {"loss", short_number(last.loss)},
          {"tokens", last.tokens},
          {"tokens_per_s", short_number(last.tokens_per_s)},
          {"peak_bytes", last.peak_bytes},
          {"skipped_steps", last.skipped_steps}};
}

/// The latest, by group.
OrderedJson lost_updates_of(const RunRecord& record) {
  OrderedJson all = OrderedJson::array();
  for (const LostShare& share : record.lost_updates) {
    OrderedJson one{{"group", share.group}, {"elements", share.elems}, {"f32", short_number(share.masters)}};
    if (share.copies) one["bf16"] = short_number(*share.copies);
    all.push_back(std::move(one));
  }
  return all;
}

OrderedJson curves_of(const RunRecord& record) {
  OrderedJson curves{{"loss", curve_of(record.loss)},
                     {"validation", curve_of(record.validation)},
                     {"lr", curve_of(record.lr)},
                     {"grad_norm", curve_of(record.grad_norm)},
                     {"tokens_per_s", curve_of(record.tokens_per_s)},
                     {"peak_bytes", curve_of(record.peak_bytes)},
                     {"host_bytes", curve_of(record.host_bytes)},
                     {"data_wait_ms", curve_of(record.data_wait_ms)},
                     {"lost_masters", curve_of(record.lost_masters)},
                     {"lost_copies", curve_of(record.lost_copies)},
                     {"load_max", curve_of(record.load_max)},
                     {"load_min", curve_of(record.load_min)},
                     {"load_entropy", curve_of(record.load_entropy)},
                     {"balance_loss", curve_of(record.balance_loss)}};
  for (const auto& [task, metrics] : record.tasks)
    for (const auto& [metric, series] : metrics) curves[fmt::format("task/{}/{}", task, metric)] = curve_of(series);
  return curves;
}

/// Names of the metrics of each task.
OrderedJson tasks_of(const RunRecord& record) {
  OrderedJson all = OrderedJson::object();
  for (const auto& [task, metrics] : record.tasks)
    for (const auto& [metric, series] : metrics) all[task].push_back(metric);
  return all;
}

/// Within a script element "<" could end it.
std::string in_script(std::string_view json) {
  std::string text;
  for (const char c : json) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

}  // namespace

std::string report_page(const RunRecord& record, std::int64_t written_s) {
  const OrderedJson data{
      {"name", record.name},
      {"version", version()},
      {"written", written_s},
      {"state", name_of(record.state)},
      {"detail", record.detail},
      {"steps", record.planned_steps},
      {"seconds", short_number(record.train_s)},
      {"last", last_of(record)},
      {"validation", record.best_step < 0 ? OrderedJson()
                                          : OrderedJson{{"last", short_number(record.last_validation)},
                                                        {"best", short_number(record.best_validation)},
                                                        {"step", record.best_step}}},
      {"norm", record.largest_norm_step == 0
                   ? OrderedJson()
                   : OrderedJson{{"largest", short_number(record.largest_norm)}, {"step", record.largest_norm_step}}},
      {"damaged", record.damaged_lines},
      {"kinds", record.kinds},
      {"waits", {{"steps", record.waiting_steps}, {"seconds", short_number(record.data_wait_s)}}},
      {"lost_updates", lost_updates_of(record)},
      {"tasks", tasks_of(record)},
      {"curves", curves_of(record)},
      {"config", record.config_toml}};
  return page_of(record.name, in_script(data.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)));
}

}  // namespace zs
