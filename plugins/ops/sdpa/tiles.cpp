// Attention by matrix products over tiles of queries, in fp32, on any device: with every mask, on some of the queries
// or keys of a row, with their log sums. Slower than LibTorch's fused kernels, which do not support all of that on
// CUDA.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels.hpp"
#include "part.hpp"

namespace sdpa {
namespace {

constexpr int64_t kTileBytes = int64_t{32} << 20;  // of scores

// The number of queries in a tile.
int64_t tile_length(int64_t batch, int64_t heads, int64_t queries, int64_t keys) {
  return std::clamp<int64_t>(kTileBytes / std::max<int64_t>(1, batch * heads * keys * 4), 1,
                             std::max<int64_t>(1, queries));
}

// B rows, G key heads, n query heads for each of them, T queries, S keys, D dims.
class Tiles final : public Kernel {
 public:
  Tiles(const Operators& aten, const OpView& op) : aten_(aten), spec_(op), scale_(op.attr_float("scale")) {}

  void forward(Call& call) override {
    const Part part(call, spec_);
    number_chunks(call);
    const BorrowedTensor q = call.input(0), v = call.input(2);
    Tensor out = create(call, q.dtype(), {part.batch, part.queries, part.heads, v.size(3)});
    Tensor sums = create(call, CHASSIS_DTYPE_F32, {part.batch, part.heads, part.queries});
    if (part.has_hidden()) {
      aten_.zero_(out);
      aten_.fill_(sums, -INFINITY);
    }
    if (part.has_pairs()) {
      const Tensor keys = keys_of(call, part, 1), values = keys_of(call, part, 2);
      for_each_tile(part, [&](int64_t begin, int64_t length) {
        const Tensor scores = scores_of(call, part, keys, begin, length);
        const Tensor sum = aten_.logsumexp(scores, Shape{-1}, true);
        // -inf - -inf is not a number; a row of -inf has the weights exp(-inf - 0) = 0.
        const Tensor shift = aten_.masked_fill(sum, aten_.eq_scalar(sum, -INFINITY), 0.0);
        aten_.exp_(aten_.sub_(scores, shift));
        put_rows(out, aten_.matmul(scores, values), part, begin, length);
        put_sums(sums, sum, part, begin, length);
      });
    }
    call.set_output(0, std::move(out));
    call.save(0, std::move(sums));
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0)) return;
    const Part part(call, spec_);
    number_chunks(call);
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2);
    Tensor of_queries = Tensor::create_like(call.host(), q), of_keys = Tensor::create_like(call.host(), k),
           of_values = Tensor::create_like(call.host(), v);
    if (part.has_hidden()) aten_.zero_(of_queries);
    if (part.num_keys < part.keys || !part.has_pairs())
      for (const Tensor* gradient : {&of_keys, &of_values}) aten_.zero_(*gradient);
    if (part.has_pairs()) {
      const Tensor keys = keys_of(call, part, 1), values = keys_of(call, part, 2);
      const Tensor key_sum = zeros(call, keys), value_sum = zeros(call, values);
      for_each_tile(part, [&](int64_t begin, int64_t length) {
        const Tensor rows = rows_of(call, call.input(0), part, begin, length, 1.0);
        const Tensor gradient = rows_of(call, call.grad_output(0), part, begin, length, 1.0);
        const Tensor output = rows_of(call, call.output(0), part, begin, length, 1.0);
        const Tensor scores = scores_of(call, part, keys, begin, length);
        const Tensor sum = sums_of(call, part, begin, length);
        aten_.exp_(aten_.sub_(scores, sum));
        aten_.add_(value_sum, aten_.matmul(swapped(scores), gradient));
        const Tensor of_scores = aten_.matmul(gradient, swapped(values));
        const Tensor delta = aten_.sum_dims(aten_.mul_(output, gradient), Shape{-1}, true);
        aten_.mul_(aten_.sub_(of_scores, delta), scores);
        aten_.mul_scalar_(of_scores, scale_);
        put_rows(of_queries, aten_.matmul(of_scores, keys), part, begin, length);
        aten_.add_(key_sum, aten_.matmul(swapped(of_scores), rows));
      });
      put_keys(of_keys, key_sum, part);
      put_keys(of_values, value_sum, part);
    }
    if (call.wants_grad_input(0)) call.set_grad_input(0, std::move(of_queries));
    if (call.wants_grad_input(1)) call.set_grad_input(1, std::move(of_keys));
    if (call.wants_grad_input(2)) call.set_grad_input(2, std::move(of_values));
  }

 private:
  template <class Visit>
  static void for_each_tile(const Part& part, Visit&& visit) {
    const int64_t length = tile_length(part.batch, part.heads, part.num_queries, part.num_keys);
    for (int64_t begin = 0; begin < part.num_queries; begin += length)
      visit(begin, std::min(length, part.num_queries - begin));
  }

  Tensor create(Call& call, uint32_t dtype, std::span<const int64_t> shape) const {
    const BorrowedTensor q = call.input(0);
    return Tensor::create(call.host(), dtype, shape, q.device_type(), q.view().device_index);
  }
  Tensor create(Call& call, uint32_t dtype, std::initializer_list<int64_t> shape) const {
    return create(call, dtype, std::span(shape.begin(), shape.size()));
  }
  Tensor zeros(Call& call, const BorrowedTensor& like) const {
    Tensor out = Tensor::create_like(call.host(), like);
    aten_.zero_(out);
    return out;
  }
  Tensor swapped(const BorrowedTensor& x) const { return aten_.transpose(x, -1, -2); }

  // A copy of [B, S, G, D] in fp32 as [B, G, S, D].
  Tensor keys_of(Call& call, const Part& part, uint32_t input) const {
    const BorrowedTensor x = call.input(input);
    Tensor out = create(call, CHASSIS_DTYPE_F32, {part.batch, part.key_heads, part.num_keys, x.size(3)});
    aten_.copy_(out, aten_.transpose(aten_.narrow(x, 1, 0, part.num_keys), 1, 2));
    return out;
  }
  void put_keys(const Tensor& to, const Tensor& sum, const Part& part) const {
    aten_.copy_(aten_.narrow(to, 1, 0, part.num_keys), aten_.transpose(sum, 1, 2));
  }

  // [B, T, h, D] of a tile as [B, G, n, T, D], without a copy.
  Tensor grouped(const BorrowedTensor& x, const Part& part, int64_t begin, int64_t length) const {
    const Tensor tile = aten_.narrow(x, 1, begin, length);
    const Tensor groups =
        aten_.view(tile, Shape{part.batch, length, part.key_heads, part.heads / part.key_heads, x.size(3)});
    return aten_.transpose(aten_.transpose(groups, 1, 2), 2, 3);
  }
  // A copy of a tile in fp32 as [B, G, n·T, D], times a factor.
  Tensor rows_of(Call& call, const BorrowedTensor& x, const Part& part, int64_t begin, int64_t length,
                 double factor) const {
    const int64_t groups = part.heads / part.key_heads, dims = x.size(3);
    const Tensor out = create(call, CHASSIS_DTYPE_F32, {part.batch, part.key_heads, groups, length, dims});
    aten_.copy_(out, grouped(x, part, begin, length));
    if (factor != 1.0) aten_.mul_scalar_(out, factor);
    return aten_.view(out, Shape{part.batch, part.key_heads, groups * length, dims});
  }
  void put_rows(const Tensor& to, const Tensor& rows, const Part& part, int64_t begin, int64_t length) const {
    const Shape shape = {part.batch, part.key_heads, part.heads / part.key_heads, length, rows.size(-1)};
    aten_.copy_(grouped(to, part, begin, length), aten_.view(rows, shape));
  }

  // [B, h, T] ↔ [B, G, n·T, 1]
  void put_sums(const Tensor& to, const Tensor& sum, const Part& part, int64_t begin, int64_t length) const {
    aten_.copy_(aten_.narrow(to, 2, begin, length), aten_.view(sum, Shape{part.batch, part.heads, length}));
  }
  // The log sums, +inf where no key is seen, so that all weights are 0.
  Tensor sums_of(Call& call, const Part& part, int64_t begin, int64_t length) const {
    const Tensor sum = aten_.contiguous(aten_.narrow(call.saved(0), 2, begin, length));
    const Tensor safe = aten_.masked_fill(sum, aten_.eq_scalar(sum, -INFINITY), INFINITY);
    return aten_.view(safe, Shape{part.batch, part.key_heads, part.heads / part.key_heads * length, 1});
  }

  // The scores [B, G, n·T, S], -inf where a key is hidden.
  Tensor scores_of(Call& call, const Part& part, const Tensor& keys, int64_t begin, int64_t length) const {
    const Tensor rows = rows_of(call, call.input(0), part, begin, length, scale_);
    Tensor scores = aten_.matmul(rows, swapped(keys));
    if (const Tensor seen = seen_of(call, part, begin, length)) {
      const int64_t groups = part.heads / part.key_heads;
      const Tensor by_query = aten_.view(scores, Shape{part.batch, part.key_heads, groups, length, part.num_keys});
      aten_.masked_fill_(by_query, aten_.logical_not(seen), -INFINITY);
    }
    return scores;
  }

  // [B or 1, 1, 1, T, S]; absent if every query of the tile sees all keys.
  Tensor seen_of(Call& call, const Part& part, int64_t begin, int64_t length) const {
    const BorrowedTensor documents = call.input(3), prefixes = call.input(4);
    const int64_t first = part.query_offset + begin, last_key = part.key_offset + part.num_keys - 1;
    const Shape of_queries = {1, 1, 1, length, 1}, of_keys = {1, 1, 1, 1, part.num_keys};
    const auto queries = [&](auto&& value) { return vector_of(call, of_queries, first, value); };
    const auto keys = [&](auto&& value) { return vector_of(call, of_keys, part.key_offset, value); };
    const auto position = [](int64_t at) { return at; };
    Tensor seen;
    const auto require = [&](Tensor condition) {
      seen = seen ? aten_.logical_and(seen, condition) : std::move(condition);
    };
    if (spec_.causal && last_key > first) {
      Tensor earlier = aten_.logical_not(aten_.lt(queries(position), keys(position)));
      if (prefixes) {
        const Tensor lengths = aten_.view(prefixes, Shape{part.batch, 1, 1, 1, 1});
        earlier = aten_.logical_or(earlier, aten_.lt(keys(position), lengths));
      }
      require(std::move(earlier));
    }
    if (const int64_t window = spec_.window; window > 0)
      require(aten_.lt(queries([&](int64_t t) { return t - window; }), keys(position)));
    if (const int64_t chunk = spec_.chunk; chunk > 0 && !documents) {
      const auto number = [&](int64_t at) { return at / chunk; };
      require(aten_.eq(queries(number), keys(number)));
    }
    if (documents) {
      const Tensor own = ids_of(documents, part, first, length, of_queries);
      require(aten_.eq(own, ids_of(documents, part, part.key_offset, part.num_keys, of_keys)));
      require(aten_.logical_not(aten_.lt_scalar(own, 0)));
    }
    if (chunks_)
      require(aten_.eq(ids_of(chunks_, part, first, length, of_queries),
                       ids_of(chunks_, part, part.key_offset, part.num_keys, of_keys)));
    return seen;
  }

  Tensor ids_of(const BorrowedTensor& documents, const Part& part, int64_t begin, int64_t length, Shape shape) const {
    shape[0] = part.batch;
    return aten_.view(aten_.contiguous(aten_.narrow(documents, 1, begin, length)), shape);
  }

  // A vector of value(first), value(first + 1) … on the device.
  template <class Value>
  Tensor vector_of(Call& call, const Shape& shape, int64_t first, Value&& value) const {
    const Tensor here = Tensor::create(call.host(), CHASSIS_DTYPE_I32, shape);
    for (int64_t i = 0; i < here.num_elements(); ++i) here.data<int32_t>()[i] = static_cast<int32_t>(value(first + i));
    if (call.input(0).is_cpu()) return here.retain();
    Tensor there = create(call, CHASSIS_DTYPE_I32, shape);
    aten_.copy_(there, here);
    return there;
  }

  // Before the tiles of a call.
  void number_chunks(Call& call) {
    const BorrowedTensor documents = call.input(3);
    chunks_ = spec_.chunk > 0 && documents ? chunk_numbers(aten_, call.host(), documents, spec_.chunk) : Tensor();
  }

  const Operators& aten_;
  const MaskSpec spec_;
  const double scale_;
  Tensor chunks_;  // of a call with chunks of documents
};

// Room for fp32 copies of keys and values, in backward also for the sums of their gradients, and for up to four tiles
// of scores or masks.
uint64_t workspace_bytes(const NodeView& node, bool backward) {
  const OperandView q = node.input(0), k = node.input(1), v = node.input(2);
  const int64_t length = tile_length(q.size(0), q.size(2), q.size(1), k.size(1));
  const int64_t scores = q.size(0) * q.size(2) * length * k.size(1) * 4;
  const int64_t rows = q.size(0) * q.size(2) * length * (q.size(3) + v.size(3)) * 4;
  const int64_t copies = (k.num_elements() + v.num_elements()) * 4;
  return static_cast<uint64_t>(backward ? 2 * copies + 4 * scores + 2 * rows : copies + 2 * scores + rows);
}

}  // namespace

Part::Part(const Call& call, const MaskSpec& spec) {
  const BorrowedTensor q = call.input(0), k = call.input(1);
  batch = q.size(0), queries = q.size(1), heads = q.size(2), keys = k.size(1), key_heads = k.size(2);
  query_offset = call.query_offset();
  key_offset = call.key_offset();
  const int64_t positions = call.num_positions() > 0 ? call.num_positions() : keys;
  num_queries = std::clamp<int64_t>(positions - query_offset, 0, queries);
  num_keys = std::clamp<int64_t>(positions - key_offset, 0, keys);
  if (spec.causal && !spec.prefix) num_keys = std::clamp<int64_t>(query_offset + num_queries - key_offset, 0, num_keys);
  if (const BorrowedTensor documents = call.input(3); documents && documents.size(1) != positions)
    throw Failure(CHASSIS_INVALID_ARGUMENT, "document_ids has ", documents.size(1), " positions, expected ", positions);
}

std::unique_ptr<Kernel> make_tiles(Shared& shared, const NodeView& node) {
  return std::make_unique<Tiles>(shared.aten, node.op(0));
}

Tensor chunk_numbers(const Operators& aten, const Host& host, const BorrowedTensor& documents, int64_t chunk) {
  const Shape shape = {documents.size(0), documents.size(1)};
  Tensor here = Tensor::create(host, CHASSIS_DTYPE_I32, shape);
  aten.copy_(here, documents);
  auto* const numbers = here.data<int32_t>();
  const auto count = static_cast<size_t>(here.num_elements());
  const std::vector<int32_t> begins = document_begins({numbers, count}, shape[0], shape[1]);
  for (size_t i = 0; i < count; ++i) {
    const int64_t at = static_cast<int64_t>(i) % shape[1];
    numbers[i] = static_cast<int32_t>((at - begins[i]) / chunk);
  }
  if (documents.is_cpu()) return here;
  Tensor there = Tensor::create(host, CHASSIS_DTYPE_I32, shape, documents.device_type(), documents.view().device_index);
  aten.copy_(there, here);
  return there;
}

std::string tiles_refusal(const NodeView& node) {
  const uint32_t dtype = node.input(0).dtype();
  if (dtype == CHASSIS_DTYPE_F32 || dtype == CHASSIS_DTYPE_BF16 || dtype == CHASSIS_DTYPE_F16) return "";
  return "computes some of the queries or keys of a row in f32, bf16 and f16, not " + std::string(dtype_name(dtype));
}

void infer_tiles(const NodeView& node, bool has_workspace, Infer& out) {
  const OperandView q = node.input(0);
  const bool has_key_part = node.op(0).has_attr("key_part");
  if (has_key_part) out.flags(CHASSIS_KERNEL_LOG_SUM);
  if (node.training() || has_key_part) {
    for (int i = 0; i < node.num_inputs(); ++i)
      if (node.has_input(i)) out.keeps_input(static_cast<uint32_t>(i));
    out.keeps_output(0).saves(CHASSIS_DTYPE_F32, {q.size(0), q.size(2), q.size(1)});
  }
  if (has_workspace) out.workspace(workspace_bytes(node, false), workspace_bytes(node, true));
}

}  // namespace sdpa
