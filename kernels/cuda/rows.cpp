#include <algorithm>

#include "kernels/checks.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {

Parts parts_of(const Rows& rows, std::int64_t sums) {
  constexpr std::int64_t kFewestRows = 32, kMost = 256;
  const std::int64_t fit = ExecContext::kWorkspaceBytes / (sums * rows.width * size_of(DType::f32));
  ZS_CHECK(fit >= 1, "sums over rows of {} elements do not fit into {} bytes", rows.width,
           ExecContext::kWorkspaceBytes);
  const std::int64_t most = std::min(kMost, fit), each = std::max(kFewestRows, (rows.count + most - 1) / most);
  return {(rows.count + each - 1) / each, each};
}

void add_parts(ExecContext& ctx, const Buffer& out, const float* first, std::int64_t count, std::int64_t stride,
               float beta) {
  const PartsArgs args{
      .parts = first, .count = count, .stride = stride, .width = out.elems, .out = data_of(out), .beta = beta};
  launch_elems(ctx, "zs_reduce_columns", out.elems, 1, args);
}

float* sum_columns(ExecContext& ctx, ColumnSumsArgs args, const Parts& parts, std::int64_t sums) {
  args.parts = static_cast<float*>(ctx.workspace(parts.count * sums * args.rows.width * size_of(DType::f32)));
  args.rows_a_part = parts.rows_each;
  launch_elems(ctx, "zs_column_sums", parts.count * packs_of(args.rows.width), 1, args);
  return args.parts;
}

namespace {

/// What the table's rows hold before rows are added.
void begin_table(ExecContext& ctx, const Buffer& table, float beta) {
  if (beta == 0.0f) return cuda_kernels().zero(ctx, table);
  if (beta != 1.0f) cuda_kernels().scale(ctx, table, table, beta);
}

void bias_backward(ExecContext& ctx, Buffer dbias, Buffer dy, float beta) {
  const Rows rows{checks::rows_of(dy, dbias.elems), dbias.elems};
  checks::gradient("dbias", dbias, dy);
  const Parts parts = parts_of(rows, 1);
  const ColumnSumsArgs args{.dy = data_of(dy),
                            .x = kNone,
                            .mean = nullptr,
                            .rstd = nullptr,
                            .parts = nullptr,
                            .rows = rows,
                            .rows_a_part = 0,
                            .is_aligned = are_whole_packs(rows.width, dy.data)};
  add_parts(ctx, dbias, sum_columns(ctx, args, parts, 1), parts.count, rows.width, beta);
}

void embedding_forward(ExecContext& ctx, Buffer out, Buffer ids, Buffer table, Buffer positions, std::int64_t time) {
  if (ids.empty()) return;
  const checks::TableRows found = checks::embedding_forward(out, ids, table, positions, time);
  const EmbeddingArgs args{.out = data_of(out),
                           .table = data_of(table),
                           .positions = data_or_none(positions),
                           .ids = ids.as<std::int32_t>(),
                           .rows = {found.tokens, found.width},
                           .table_rows = found.table_rows,
                           .time = std::max<std::int64_t>(time, 1),
                           .is_aligned = are_whole_packs(found.width, out.data, table.data, positions.data)};
  launch_elems(ctx, "zs_embedding_forward", found.tokens * packs_of(found.width), 1, args);
}

void embedding_backward(ExecContext& ctx, Buffer dtable, Buffer ids, Buffer dy, std::int64_t width, float beta) {
  const checks::TableRows found = checks::embedding_backward(dtable, ids, dy, width);
  begin_table(ctx, dtable, beta);
  const ScatterArgs args{.table = data_of(dtable),
                         .dy = data_of(dy),
                         .ids = ids.as<std::int32_t>(),
                         .rows = {found.tokens, width},
                         .table_rows = found.table_rows,
                         .time = 0,
                         .is_aligned = are_whole_packs(width, dtable.data, dy.data)};
  launch(ctx, "zs_embedding_backward", found.tokens, kThreads, &args);
}

void position_backward(ExecContext& ctx, Buffer dpositions, Buffer dy, std::int64_t time, std::int64_t width,
                       float beta) {
  const checks::TableRows found = checks::position_backward(dpositions, dy, time, width);
  begin_table(ctx, dpositions, beta);
  const ScatterArgs args{.table = data_of(dpositions),
                         .dy = data_of(dy),
                         .ids = nullptr,
                         .rows = {found.tokens, width},
                         .table_rows = found.table_rows,
                         .time = time,
                         .is_aligned = are_whole_packs(width, dpositions.data, dy.data)};
  launch(ctx, "zs_position_backward", time, kThreads, &args);
}

}  // namespace

void fill_rows(KernelTable& table, KernelNames& names) {
  // Sums have the stream's workspace (ExecContext::workspace).
  table.scratch.bias_backward = [](std::int64_t, std::int64_t) { return std::int64_t{0}; };
  table.bias_backward = bias_backward;
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
  table.position_backward = position_backward;
  names.insert(names.end(), {"zs_column_sums", "zs_reduce_columns", "zs_embedding_forward", "zs_embedding_backward",
                             "zs_position_backward"});
}

}  // namespace zs::cuda
