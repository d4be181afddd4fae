// Narrows the whole to the chunk, as far as the whole goes.
#include "host/compile/chunks.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace chassis {
namespace {

// The part of the whole and the part of the values that cover the same positions; empty tensors if there are none.
std::pair<Tensor, Tensor> both_have(const Tensor& whole, const Chunk& chunk, const Tensor& values) {
  const int64_t begin = std::min(chunk.part * chunk.length, whole.size(chunk.dim)),
                length = std::min(chunk.length, whole.size(chunk.dim) - begin);
  if (length == 0) return {};
  return {whole.narrow(chunk.dim, begin, length), values.narrow(chunk.dim, 0, length)};
}

}  // namespace

Tensor read_chunk(const Tensor& whole, const Chunk& chunk) {
  const int64_t begin = chunk.part * chunk.length;
  if (begin + chunk.length <= whole.size(chunk.dim)) return whole.narrow(chunk.dim, begin, chunk.length).contiguous();
  std::vector<int64_t> sizes = whole.sizes();
  sizes[static_cast<size_t>(chunk.dim)] = chunk.length;
  Tensor padded = Tensor::empty(sizes, whole.dtype(), whole.device());
  padded.zero();
  if (const auto [from, to] = both_have(whole, chunk, padded); from) to.copy_from(from);
  return padded;
}

void write_chunk(const Tensor& whole, const Chunk& chunk, const Tensor& values) {
  if (const auto [to, from] = both_have(whole, chunk, values); to) to.copy_from(from);
}

void add_to_chunk(const Tensor& whole, const Chunk& chunk, const Tensor& values) {
  if (const auto [to, from] = both_have(whole, chunk, values); to) to.add(from);
}

}  // namespace chassis
