#include <algorithm>
#include <bit>
#include <iterator>

#include "kernels/checks.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/launch.h"
#include "kernels/families.h"

namespace zs::cuda {
namespace {

/// Blocks, or warps, that have kColumnsABlock columns each of a row.
std::int64_t blocks_of(std::int64_t width) { return (width + kColumnsABlock - 1) / kColumnsABlock; }

}  // namespace

ColumnSums make_column_sums(ExecContext& ctx, const Rows& rows, std::int64_t sums, std::int64_t most,
                            std::int64_t rows_each) {
  const std::int64_t bytes = sums * rows.width * size_of(DType::f32), fit = ExecContext::kWorkspaceBytes / bytes;
  ZS_CHECK(fit >= 1, "sums over rows of {} elements do not fit into {} bytes", rows.width,
           ExecContext::kWorkspaceBytes);
  const std::int64_t count = std::min({most, fit, (rows.count + rows_each - 1) / rows_each});
  return {static_cast<float*>(ctx.workspace(count * bytes)), count, sums};
}

void sum_columns(ExecContext& ctx, const std::string& kernel, ColumnSumsArgs args, const ColumnSums& into) {
  args.parts = into.parts;
  args.count = into.count;
  launch(ctx, kernel, into.count * blocks_of(args.rows.width), kThreads, &args);
}

void add_parts(ExecContext& ctx, const ColumnSums& sums, std::initializer_list<Buffer> outs, float beta) {
  PartsArgs args{.parts = sums.parts,
                 .count = sums.count,
                 .sums = sums.sums,
                 .width = outs.begin()->elems,
                 .outs = {},
                 .beta = beta};
  for (std::size_t i = 0; i < outs.size(); ++i) args.outs[i] = elements_of(outs.begin()[i]);
  launch(ctx, typed("zs_reduce_columns", outs.begin()->dtype, std::prev(outs.end())->dtype),
         (args.sums * args.width + kWarp - 1) / kWarp, kThreads, &args);
}

namespace {

/// Sets what the table's rows hold before rows are added.
void begin_table(ExecContext& ctx, const Buffer& table, float beta) {
  if (beta == 0.0f) return cuda_kernels().zero(ctx, table);
  if (beta != 1.0f) cuda_kernels().scale(ctx, table, table, beta);
}

void bias_backward(ExecContext& ctx, Buffer dbias, Buffer dy, float beta) {
  constexpr std::int64_t kBlocks = 512, kRowsEach = 64;
  const Rows rows{checks::rows_of(dy, dbias.elems), dbias.elems};
  checks::gradient("dbias", dbias, dy);
  const std::int64_t most = std::max<std::int64_t>(kBlocks / blocks_of(rows.width), 1);
  const ColumnSums sums = make_column_sums(ctx, rows, 1, most, kRowsEach);
  sum_columns(ctx, typed("zs_bias_sums", dy.dtype),
              {.dy = elements_of(dy), .rows = rows, .is_aligned = are_whole_packs(rows.width, dy.data)}, sums);
  add_parts(ctx, sums, {dbias}, beta);
}

void embedding_forward(ExecContext& ctx, Buffer out, Buffer ids, Buffer table, Buffer positions, std::int64_t time) {
  if (ids.empty()) return;
  const checks::TableRows found = checks::embedding_forward(out, ids, table, positions, time);
  const EmbeddingArgs args{.out = elements_of(out),
                           .table = elements_of(table),
                           .positions = elements_or_none(positions),
                           .ids = ids.as<std::int32_t>(),
                           .rows = {found.tokens, found.width},
                           .table_rows = found.table_rows,
                           .time = std::max<std::int64_t>(time, 1),
                           .is_aligned = are_whole_packs(found.width, out.data, table.data, positions.data)};
  launch_elems(ctx, typed("zs_embedding_forward", out.dtype), found.tokens * packs_of(found.width), 1, args);
}

/// Tokens that the stream's workspace has room to sort.
constexpr std::int64_t kMostTokens = ExecContext::kWorkspaceBytes / (2 * size_of(DType::i32));

SortIdsArgs sort_ids(ExecContext& ctx, const Buffer& ids, std::int64_t table_rows) {
  const int bits = std::bit_width(static_cast<std::uint64_t>(table_rows - 1));
  auto* const order = static_cast<std::int32_t*>(ctx.workspace(2 * ids.elems * size_of(DType::i32)));
  const SortIdsArgs args{.ids = ids.as<std::int32_t>(),
                         .order = order,
                         .other = order + ids.elems,
                         .count = ids.elems,
                         .table_rows = table_rows,
                         .passes = std::max((bits + kIdBitsAPass - 1) / kIdBitsAPass, 1)};
  launch(ctx, "zs_sort_ids", 1, kThreads, &args);
  return args;
}

void embedding_backward(ExecContext& ctx, Buffer dtable, Buffer ids, Buffer dy, std::int64_t width, float beta,
                        std::int32_t padding) {
  const checks::TableRows found = checks::embedding_backward(dtable, ids, dy, width);
  begin_table(ctx, dtable, beta);
  for (std::int64_t first = 0; first < found.tokens; first += kMostTokens) {
    const std::int64_t tokens = std::min(kMostTokens, found.tokens - first);
    const Buffer rows = dy.slice(first * width, tokens * width);
    const SortIdsArgs sort = sort_ids(ctx, ids.slice(first, tokens), found.table_rows);
    const ScatterArgs args{.table = elements_of(dtable),
                           .dy = elements_of(rows),
                           .ids = sort.ids,
                           .order = sort.order,
                           .rows = {tokens, width},
                           .table_rows = found.table_rows,
                           .padding = padding,
                           .is_aligned = are_whole_packs(width, dtable.data, rows.data)};
    const std::int64_t warps = tokens * blocks_of(width), a_block = kThreads / kWarp;
    launch(ctx, typed("zs_embedding_backward", dy.dtype, dtable.dtype), (warps + a_block - 1) / a_block, kThreads,
           &args);
  }
}

void position_backward(ExecContext& ctx, Buffer dpositions, Buffer dy, std::int64_t time, std::int64_t width,
                       float beta) {
  const checks::TableRows found = checks::position_backward(dpositions, dy, time, width);
  begin_table(ctx, dpositions, beta);
  const ScatterArgs args{.table = elements_of(dpositions),
                         .dy = elements_of(dy),
                         .rows = {found.tokens, width},
                         .table_rows = found.table_rows,
                         .time = time,
                         .is_aligned = are_whole_packs(width, dpositions.data, dy.data)};
  launch(ctx, typed("zs_position_backward", dy.dtype, dpositions.dtype), time, kThreads, &args);
}

}  // namespace

void fill_rows(KernelTable& table, KernelNames& names) {
  // Sums have the stream's workspace (ExecContext::workspace).
  table.scratch.bias_backward = [](std::int64_t, std::int64_t) { return std::int64_t{0}; };
  table.bias_backward = bias_backward;
  table.embedding_forward = embedding_forward;
  table.embedding_backward = embedding_backward;
  table.position_backward = position_backward;
  names.push_back("zs_sort_ids");
  add_typed(names, {"zs_bias_sums", "zs_embedding_forward"});
  add_pairs(names, {"zs_reduce_columns", "zs_embedding_backward", "zs_position_backward"});
}

}  // namespace zs::cuda
