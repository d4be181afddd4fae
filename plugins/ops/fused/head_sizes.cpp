#include "head_sizes.hpp"

#include <algorithm>

#include "chassis/amx.hpp"

namespace fused {
namespace {

// Rationale: a product reads its factors once for each block of rows, and dweight is read and written once. At 2 cores
// with AVX-512 and V = 128256, h = 2048 in fp32, 130 rows reach 80 % of the best rate, 512 rows 92 % and 1024 all of
// it.
constexpr int64_t kManyRows = 1024, kEnoughRows = 512;

// Tiles have these columns, or fewer if a copy of their weights in fp32 would exceed kCopyBytes. Rationale: the threads
// meet after each product and each loop over a tile. If other programs take the cores too, tiles of 2048 columns take
// 1.5 to 2 times as long as those of 8192.
constexpr int64_t kMostColumns = 8192, kFewestColumns = 1024, kColumnUnit = 16, kCopyBytes = 32 << 20;

// Rows whose exponentials fit are kept even if more than kEnoughRows.
constexpr int64_t kKeptBytes = 64 << 20;

int64_t columns_of_tile(int64_t vocab, int64_t in, bool widens) {
  const int64_t copied = std::max(kFewestColumns, kCopyBytes / (4 * std::max<int64_t>(1, in)));
  const int64_t even = rows_per_block(vocab, widens ? std::min(kMostColumns, copied) : kMostColumns);
  return std::min(std::max<int64_t>(1, vocab), (even + kColumnUnit - 1) / kColumnUnit * kColumnUnit);
}

uint64_t bf16_scratch_bytes(const Host& host, int64_t m, int64_t n, int64_t k) {
  return gemm_scratch_bytes(host, CHASSIS_DTYPE_BF16, CHASSIS_DTYPE_F32, m, n, k);
}

// True if fp32 products are faster than those of bf16, or the host would copy whole factors for the latter. Rationale:
// Intel's processors multiply bf16 in vectors at half the rate of fp32 (Xeon of family 6, model 207 without AMX: 160
// and 300 GFLOP/s on 2 cores); with AMX, or on AMD's, bf16 is faster.
bool widens_factors(const Host& host, int64_t rows, int64_t vocab, int64_t in) {
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel") && !has_amx_bf16()) return true;
#endif
  const int64_t columns = std::min(vocab, kMostColumns);
  return bf16_scratch_bytes(host, rows, columns, in) + bf16_scratch_bytes(host, columns, in, rows) > 0;
}

// The host may widen the factors of dx, [rows, in], since it has fewer elements; more for fewer rows than kManyRows.
uint64_t input_gradient_scratch_bytes(const Host& host, int64_t rows, int64_t columns, int64_t in) {
  return std::max(bf16_scratch_bytes(host, rows, in, columns),
                  bf16_scratch_bytes(host, std::min(rows, kManyRows - 1), in, columns));
}

}  // namespace

HeadSpec::HeadSpec(const NodeView& node)
    : ignore_index(node.op(node.num_ops() - 1).attr_int("ignore_index", -100)),
      softcap(node.num_ops() == 3 ? static_cast<float>(node.op(1).attr_float("cap")) : 0.0f) {}

int64_t rows_per_block(int64_t rows, int64_t most_rows) {
  const int64_t blocks = std::max<int64_t>(1, (rows + most_rows - 1) / most_rows);
  return std::max<int64_t>(1, (rows + blocks - 1) / blocks);
}

HeadSizes head_sizes(const Host& host, const NodeView& node) {
  const int64_t vocab = node.param(0).size(0), in = node.param(0).size(1), rows = node.input(1).num_elements();
  const bool is_bf16 = node.param(0).dtype() == CHASSIS_DTYPE_BF16;
  HeadSizes s{};
  s.block_rows = rows_per_block(rows, kManyRows);
  s.widens = is_bf16 && widens_factors(host, s.block_rows, vocab, in);
  s.columns = columns_of_tile(vocab, in, s.widens);
  // Whole logits in fp32 are their own exponentials: tiles would save nothing, and the threads would meet more often.
  s.kept_columns = is_bf16 ? s.columns : vocab;

  const int64_t element = is_bf16 ? 2 : 4, factor = is_bf16 && !s.widens ? 2 : 4;
  const int64_t fixed = s.widens ? s.columns * in * 4 : 0, row_of_x = in * factor, row_of_dx = in * 4,
                row_of_tile = s.columns * 4, row_of_rounded = factor == 2 ? s.columns * 2 : 0;
  const int64_t num_tiles = (vocab + s.kept_columns - 1) / s.kept_columns;
  const int64_t kept_row = row_of_x + row_of_dx + vocab * element + num_tiles * 4 + (is_bf16 ? row_of_tile : 0);
  s.kept_rows = rows_per_block(rows, std::clamp((kKeptBytes - fixed) / kept_row, kEnoughRows, kManyRows));

  const auto bytes = [&](int64_t count, int64_t row) { return static_cast<uint64_t>(fixed + count * row); };
  const auto scratch = [&](int64_t count) {
    return factor == 2 ? input_gradient_scratch_bytes(host, count, s.columns, in) : 0;
  };
  s.softmax_bytes = bytes(s.block_rows, row_of_x + row_of_tile);
  s.input_bytes = bytes(s.block_rows, row_of_x + row_of_tile + row_of_rounded + row_of_dx) + scratch(s.block_rows);
  s.weight_bytes = bytes(s.block_rows, row_of_x + row_of_tile + row_of_rounded);
  s.kept_bytes = bytes(s.kept_rows, kept_row) + scratch(s.kept_rows);
  return s;
}

}  // namespace fused
