// Walks the ring, and merges the results of the pieces.
#include "host/execute/ring_attention.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "host/compile/row_pieces.hpp"
#include "host/service/log_sum.hpp"

namespace chassis {
namespace {

constexpr int kTimeOfLogSum = 2;  // T's index in a log sum

Tensor zeros_like(const Tensor& x, Dtype dtype) { return Tensor::zeros(x.sizes(), dtype, x.device()); }

void add(const Tensor& sum, const Tensor& term) {
  if (term) sum.add(term.to(sum.dtype()));
}

// Calls visit(query piece, key piece, offsets) for each pair of pieces in which at least one query sees a key.
template <class Visit>
void for_each_pair(const Ring& ring, int64_t source, int64_t length, Visit&& visit) {
  for (int64_t i = 0; i < kRowPieces; ++i)
    for (int64_t j = 0; j < kRowPieces; ++j) {
      const AttentionOffsets offsets{ring.begin(ring.rank, i, length), ring.begin(source, j, length)};
      if (!ring.skips_later_keys || offsets.key <= offsets.query)
        visit(static_cast<size_t>(i), static_cast<size_t>(j), offsets);
    }
}

}  // namespace

PartialAttention ring_forward(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttendForward& attend) {
  const int64_t length = q.size(kTimeDim) / kRowPieces;
  const std::array<Tensor, kRowPieces> queries = pieces_of(q);
  std::array<Tensor, kRowPieces> outputs, log_sums;
  Tensor keys = k.contiguous(), values = v.contiguous();
  for (int64_t step = 0; step < ring.num_ranks; ++step) {
    const int64_t source = (ring.rank - step + ring.num_ranks) % ring.num_ranks;
    std::unique_ptr<Shift> next;
    if (step + 1 < ring.num_ranks) next = ring.collectives->shift(ring.axis, {keys, values});
    const std::array<Tensor, kRowPieces> here = pieces_of(keys), of_values = pieces_of(values);
    for_each_pair(ring, source, length, [&](size_t i, size_t j, AttentionOffsets offsets) {
      PartialAttention part = attend(queries[i], here[j], of_values[j], offsets);
      if (!outputs[i]) {
        outputs[i] = part.output.to(Dtype::f32);
        log_sums[i] = std::move(part.log_sum);
      } else {
        merge_attention(outputs[i], log_sums[i], part.output, part.log_sum);
      }
    });
    if (!next) break;
    std::vector<Tensor> received = next->take();
    keys = std::move(received[0]), values = std::move(received[1]);
  }
  return {joined_pieces(outputs, kTimeDim, q.dtype()), joined_pieces(log_sums, kTimeOfLogSum, Dtype::f32)};
}

std::array<Tensor, 3> ring_backward(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v,
                                    const PartialAttention& whole, const Tensor& gradient,
                                    const AttendBackward& attend) {
  const int64_t length = q.size(kTimeDim) / kRowPieces;
  const std::array<Tensor, kRowPieces> queries = pieces_of(q), outputs = pieces_of(whole.output),
                                       log_sums = pieces_of(log_sum_for_backward(whole.log_sum), kTimeOfLogSum),
                                       gradients = pieces_of(gradient);
  std::array<Tensor, kRowPieces> of_queries;
  for (size_t i = 0; i < kRowPieces; ++i) of_queries[i] = zeros_like(queries[i], Dtype::f32);
  Tensor keys = k.contiguous(), values = v.contiguous();
  Tensor of_keys = zeros_like(keys, Dtype::f32), of_values = zeros_like(values, Dtype::f32);
  for (int64_t step = 0; step < ring.num_ranks; ++step) {
    const int64_t source = (ring.rank - step + ring.num_ranks) % ring.num_ranks;
    std::unique_ptr<Shift> next;
    if (step + 1 < ring.num_ranks) next = ring.collectives->shift(ring.axis, {keys, values});
    const std::array<Tensor, kRowPieces> here = pieces_of(keys), here_values = pieces_of(values);
    for_each_pair(ring, source, length, [&](size_t i, size_t j, AttentionOffsets offsets) {
      const std::array<Tensor, 3> part =
          attend(queries[i], here[j], here_values[j], {outputs[i], log_sums[i]}, gradients[i], offsets);
      add(of_queries[i], part[0]);
      add(piece_of(of_keys, kTimeDim, static_cast<int64_t>(j)), part[1]);
      add(piece_of(of_values, kTimeDim, static_cast<int64_t>(j)), part[2]);
    });
    // The gradients of keys and values follow them; after the last step they are back on their own rank.
    std::vector<Tensor> arrived;
    if (next) arrived = next->take();
    std::vector<Tensor> sums = ring.collectives->shift(ring.axis, {of_keys, of_values})->take();
    of_keys = std::move(sums[0]), of_values = std::move(sums[1]);
    if (next) keys = std::move(arrived[0]), values = std::move(arrived[1]);
  }
  return {joined_pieces(of_queries, kTimeDim, q.dtype()), of_keys.to(k.dtype()), of_values.to(v.dtype())};
}

Tensor attend_pieces(const Ring& ring, const Tensor& q, const Tensor& k, const Tensor& v, int64_t first,
                     const AttendForward& attend) {
  const int64_t length = q.size(kTimeDim) / kRowPieces;
  const std::array<Tensor, kRowPieces> queries = pieces_of(q);
  std::array<Tensor, kRowPieces> outputs;
  for (size_t i = 0; i < kRowPieces; ++i)
    outputs[i] = attend(queries[i], k, v, {first + ring.begin(ring.rank, static_cast<int64_t>(i), length), 0}).output;
  return joined_pieces(outputs, kTimeDim, q.dtype());
}

}  // namespace chassis
