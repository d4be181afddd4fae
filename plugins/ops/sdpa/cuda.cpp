// LibTorch's kernels for CUDA: flash attention where it supports the mask (16-bit types; full, causal, window), else
// the memory-efficient kernel with an explicit bias made on the device. Only parts of rows with documents wait for the
// device, since the document ids are read here.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels.hpp"
#include "part.hpp"

namespace sdpa {
namespace {

constexpr int64_t kLseAlignment = 32;   // in queries; required by the memory-efficient kernel
constexpr int64_t kBiasAlignment = 16;  // in elements of a row

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool flash_takes_tensors(const NodeView& node) {
  const OperandView q = node.input(0), v = node.input(2);
  const bool half = q.dtype() == CHASSIS_DTYPE_BF16 || q.dtype() == CHASSIS_DTYPE_F16;
  return half && q.size(3) == v.size(3) && q.size(3) % 8 == 0 && q.size(3) <= 256;
}

bool uses_flash(const NodeView& node) {
  const MaskSpec spec(node.op(0));
  const bool window_alone = spec.window > 0 && !spec.causal;
  return flash_takes_tensors(node) && !spec.document && !spec.prefix && spec.chunk == 0 && !window_alone;
}

class Flash : public Kernel {
 public:
  Flash(const Operators& aten, const OpView& op) : aten_(aten), spec_(op), scale_(op.attr_float("scale")) {}

  // The kernel aligns its causal mask to the last key, which is right for queries after cached keys.
  void forward(Call& call) override {
    const BorrowedTensor q = call.input(0), k = call.input(1);
    auto results = aten_.flash.tensors<5>(q, k, call.input(2), std::nullopt, std::nullopt, q.size(1), k.size(1), 0.0,
                                          spec_.causal, false, scale_, left(), right());
    call.set_output(0, std::move(results[0]));
    call.save(0, std::move(results[1]));
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0)) return;
    const BorrowedTensor q = call.input(0), k = call.input(1);
    // Without dropout the kernel does not read the state of its random generator.
    const Tensor state =
        Tensor::create(call.host(), CHASSIS_DTYPE_I64, Shape{2}, q.device_type(), q.view().device_index);
    const Tensor none =
        Tensor::create(call.host(), CHASSIS_DTYPE_I32, Shape{0}, q.device_type(), q.view().device_index);
    auto gradients = aten_.flash_backward.tensors<3>(call.grad_output(0), q, k, call.input(2), call.output(0),
                                                     call.saved(0), std::nullopt, std::nullopt, q.size(1), k.size(1),
                                                     0.0, spec_.causal, state, none, scale_, left(), right());
    for (uint32_t i = 0; i < 3; ++i)
      if (call.wants_grad_input(i)) call.set_grad_input(i, std::move(gradients[i]));
  }

 private:
  std::optional<int64_t> left() const {
    return spec_.window > 0 ? std::optional<int64_t>(spec_.window - 1) : std::nullopt;
  }
  std::optional<int64_t> right() const { return spec_.window > 0 ? std::optional<int64_t>(0) : std::nullopt; }

  const Operators& aten_;
  MaskSpec spec_;
  double scale_;
};

class Efficient : public Kernel {
 public:
  Efficient(const Operators& aten, const OpView& op) : aten_(aten), spec_(op), scale_(op.attr_float("scale")) {}

  void forward(Call& call) override {
    const BorrowedTensor q = call.input(0);
    const bool plain = is_plain(call);
    const Tensor bias = plain ? Tensor() : bias_of(call);
    auto results = aten_.efficient.tensors<4>(heads_first(q), repeated(call.input(1), q), repeated(call.input(2), q),
                                              bias, call.training(), 0.0, plain && spec_.causal, scale_);
    Tensor out = aten_.contiguous(heads_first(results[0]));
    if (call.input(3)) aten_.masked_fill_(out, padding(call), 0);
    call.set_output(0, std::move(out));
    call.save(0, std::move(results[1]));
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0)) return;
    const BorrowedTensor q = call.input(0), k = call.input(1), v = call.input(2);
    const bool plain = is_plain(call);
    const Tensor bias = plain ? Tensor() : bias_of(call);
    const Tensor dout = call.input(3) ? aten_.clone(call.grad_output(0)) : call.grad_output(0).retain();
    if (call.input(3)) aten_.masked_fill_(dout, padding(call), 0);
    // Without dropout the kernel does not read the seed and its offset.
    const Tensor seed = Tensor::create(call.host(), CHASSIS_DTYPE_I64, Shape{}, q.device_type(), q.view().device_index);
    auto gradients = aten_.efficient_backward.tensors<4>(
        heads_first(dout), heads_first(q), repeated(k, q), repeated(v, q), bias, heads_first(call.output(0)),
        call.saved(0), seed, seed, 0.0, std::array<bool, 4>{true, true, true, false}, plain && spec_.causal, scale_);
    if (call.wants_grad_input(0)) call.set_grad_input(0, aten_.contiguous(heads_first(gradients[0])));
    if (call.wants_grad_input(1)) call.set_grad_input(1, summed(gradients[1], k));
    if (call.wants_grad_input(2)) call.set_grad_input(2, summed(gradients[2], v));
  }

 private:
  bool is_plain(Call& call) const {
    const bool square = call.query_offset() == 0 && call.input(0).size(1) == call.input(1).size(1);
    return !call.input(3) && !call.input(4) && spec_.window == 0 && spec_.chunk == 0 && (square || !spec_.causal);
  }

  Tensor heads_first(const BorrowedTensor& x) const { return aten_.transpose(x, 1, 2); }

  // Keys or values repeated for every query head; this kernel does not support groups.
  Tensor repeated(const BorrowedTensor& x, const BorrowedTensor& q) const {
    const int64_t groups = q.size(2) / x.size(2);
    if (groups == 1) return heads_first(x);
    const Tensor each = aten_.view(x, Shape{x.size(0), x.size(1), x.size(2), 1, x.size(3)});
    const Tensor all = aten_.expand(each, Shape{x.size(0), x.size(1), x.size(2), groups, x.size(3)});
    return heads_first(aten_.reshape(all, Shape{x.size(0), x.size(1), q.size(2), x.size(3)}));
  }
  Tensor summed(const Tensor& gradient, const BorrowedTensor& x) const {
    const Tensor rows = aten_.contiguous(heads_first(gradient));
    const int64_t groups = rows.size(2) / x.size(2);
    if (groups == 1) return rows.retain();
    return aten_.sum_dims(aten_.view(rows, Shape{x.size(0), x.size(1), x.size(2), groups, x.size(3)}), Shape{3});
  }

  // True for padding, [B, T, 1, 1].
  Tensor padding(Call& call) const {
    const BorrowedTensor documents = call.input(3);
    const Tensor queries = aten_.narrow(documents, 1, call.query_offset(), call.input(0).size(1));
    return aten_.view(aten_.lt_scalar(aten_.contiguous(queries), 0),
                      Shape{call.input(0).size(0), call.input(0).size(1), 1, 1});
  }

  // [B, h, T, S] of 0 and -inf; rows are aligned as the kernel requires.
  Tensor bias_of(Call& call) {
    const BorrowedTensor q = call.input(0), documents = call.input(3), prefixes = call.input(4);
    const int64_t batch = q.size(0), time = q.size(1), keys = call.input(1).size(1), offset = call.query_offset();
    upload(call, time, keys, offset, !documents);
    Tensor seen = aten_.clone(aten_.expand(causal_, Shape{documents || prefixes ? batch : 1, 1, time, keys}));
    if (prefixes) aten_.logical_or_(seen, aten_.lt(positions_, aten_.view(prefixes, Shape{batch, 1, 1, 1})));
    aten_.logical_and_(seen, nearby_);
    if (documents) {
      const auto keep_equal = [&](const BorrowedTensor& ids) {
        const Tensor of_keys = aten_.view(ids, Shape{batch, 1, 1, keys});
        const Tensor of_queries =
            aten_.view(aten_.contiguous(aten_.narrow(ids, 1, offset, time)), Shape{batch, 1, time, 1});
        aten_.logical_and_(seen, aten_.eq(of_queries, of_keys));
      };
      keep_equal(documents);
      if (spec_.chunk > 0) keep_equal(chunk_numbers(aten_, call.host(), documents, spec_.chunk));
      aten_.logical_or_(seen, self_);  // padding sees itself, so that no softmax is empty
    }
    const Tensor padded = create(call, q.dtype(), Shape{seen.size(0), 1, time, rounded_up(keys, kBiasAlignment)});
    const Tensor bias = aten_.narrow(padded, -1, 0, keys);
    aten_.zero_(padded);
    aten_.masked_fill_(bias, aten_.logical_not(seen), -INFINITY);
    return aten_.expand(bias, Shape{batch, q.size(2), time, keys});
  }

  // Masks that do not depend on the batch, as bools [1, 1, T, S] on the device; made again when sizes change.
  // `chunks`: of the row.
  void upload(Call& call, int64_t time, int64_t keys, int64_t offset, bool chunks) {
    if (causal_ && time == time_ && keys == keys_ && offset == offset_ && chunks == has_chunks_) return;
    const Shape shape = {1, 1, time, keys};
    const auto make = [&](auto&& sees) {
      const Tensor here = Tensor::create(call.host(), CHASSIS_DTYPE_BOOL, shape);
      for (int64_t t = 0; t < time; ++t)
        for (int64_t s = 0; s < keys; ++s) here.data<bool>()[t * keys + s] = sees(t + offset, s);
      Tensor there = create(call, CHASSIS_DTYPE_BOOL, shape);
      aten_.copy_(there, here);
      return there;
    };
    causal_ = make([&](int64_t t, int64_t s) { return !spec_.causal || s <= t; });
    nearby_ = make([&](int64_t t, int64_t s) {
      const bool same_chunk = !chunks || spec_.chunk == 0 || t / spec_.chunk == s / spec_.chunk;
      return same_chunk && (spec_.window == 0 || t - s < spec_.window);
    });
    self_ = make([&](int64_t t, int64_t s) { return t == s; });
    const Tensor here = Tensor::create(call.host(), CHASSIS_DTYPE_I32, {1, 1, 1, keys});
    for (int64_t s = 0; s < keys; ++s) here.data<int32_t>()[s] = static_cast<int32_t>(s);
    positions_ = create(call, CHASSIS_DTYPE_I32, Shape{1, 1, 1, keys});
    aten_.copy_(positions_, here);
    time_ = time;
    keys_ = keys;
    offset_ = offset;
    has_chunks_ = chunks;
  }

  Tensor create(Call& call, uint32_t dtype, const Shape& shape) const {
    const BorrowedTensor q = call.input(0);
    return Tensor::create(call.host(), dtype, shape, q.device_type(), q.view().device_index);
  }

  const Operators& aten_;
  MaskSpec spec_;
  double scale_;
  Tensor causal_, nearby_, self_, positions_;
  int64_t time_ = 0, keys_ = 0, offset_ = 0;
  bool has_chunks_ = false;
};

// Some queries or keys of a row. Flash attention aligns its causal mask to the last query and key, so it takes calls
// whose keys end with their queries, or are all seen, within one document of each row; others go to tiles. In backward
// the kernel computes weights from the log sums that it is given, which may be those of more keys (as in
// github.com/zhuzilin/ring-flash-attention).
class FlashPart final : public Kernel {
 public:
  FlashPart(Shared& shared, const NodeView& node)
      : aten_(shared.aten),
        spec_(node.op(0)),
        scale_(node.op(0).attr_float("scale")),
        tiles_(make_tiles(shared, node)) {}

  void forward(Call& call) override {
    const Part part(call, spec_);
    if (!fits(part) || !is_one_document(call, part)) return tiles_->forward(call);
    auto results = aten_.flash.tensors<5>(
        first(call.input(0), 1, part.num_queries), keys(call, part, 1), keys(call, part, 2), std::nullopt, std::nullopt,
        part.num_queries, part.num_keys, 0.0, is_causal(part), false, scale_, std::nullopt, std::nullopt);
    const BorrowedTensor q = call.input(0);
    const Shape log_sums = {part.batch, part.heads, part.queries};
    call.set_output(0, whole(call, std::move(results[0]), 1, Shape(q.sizes().begin(), q.sizes().end()), 0.0));
    call.save(0, whole(call, std::move(results[1]), 2, log_sums, -INFINITY));
  }

  void backward_inputs(Call& call) override {
    if (!call.grad_output(0)) return;
    const Part part(call, spec_);
    if (!fits(part) || !is_one_document(call, part)) return tiles_->backward_inputs(call);
    const BorrowedTensor q = call.input(0);
    // Without dropout the kernel does not read the state of its random generator.
    const Tensor state =
        Tensor::create(call.host(), CHASSIS_DTYPE_I64, Shape{2}, q.device_type(), q.view().device_index);
    const Tensor none =
        Tensor::create(call.host(), CHASSIS_DTYPE_I32, Shape{0}, q.device_type(), q.view().device_index);
    auto gradients = aten_.flash_backward.tensors<3>(
        first(call.grad_output(0), 1, part.num_queries), first(q, 1, part.num_queries), keys(call, part, 1),
        keys(call, part, 2), first(call.output(0), 1, part.num_queries), first(call.saved(0), 2, part.num_queries),
        std::nullopt, std::nullopt, part.num_queries, part.num_keys, 0.0, is_causal(part), state, none, scale_,
        std::nullopt, std::nullopt);
    for (uint32_t i = 0; i < 3; ++i) {
      const BorrowedTensor x = call.input(i);
      if (call.wants_grad_input(i))
        call.set_grad_input(i, whole(call, std::move(gradients[i]), 1, Shape(x.sizes().begin(), x.sizes().end()), 0.0));
    }
  }

 private:
  static int64_t end_of_keys(const Part& part) { return part.key_offset + part.num_keys; }
  bool is_causal(const Part& part) const { return spec_.causal && end_of_keys(part) > part.query_offset + 1; }
  bool fits(const Part& part) const {
    if (!part.has_pairs()) return false;
    const bool ends_with_queries =
        part.query_offset >= part.key_offset && end_of_keys(part) == part.query_offset + part.num_queries;
    return !is_causal(part) || ends_with_queries;
  }

  // Waits for the ids, which is cheap compared with attention over the long rows that are divided.
  bool is_one_document(Call& call, const Part& part) const {
    const BorrowedTensor documents = call.input(3);
    if (!documents) return true;
    const int64_t positions = documents.size(1);
    const Tensor here = Tensor::create(call.host(), CHASSIS_DTYPE_I32, documents.sizes());
    aten_.copy_(here, documents);
    for (int64_t b = 0; b < part.batch; ++b) {
      const int32_t* const ids = here.data<int32_t>() + b * positions;
      const int32_t id = ids[part.query_offset];
      const auto is_other = [&](int32_t other) { return other != id; };
      if (id < 0 || std::any_of(ids + part.query_offset, ids + part.query_offset + part.num_queries, is_other) ||
          std::any_of(ids + part.key_offset, ids + part.key_offset + part.num_keys, is_other))
        return false;
    }
    return true;
  }

  Tensor first(const BorrowedTensor& x, int dim, int64_t length) const {
    return x.size(dim) == length ? x.retain() : aten_.contiguous(aten_.narrow(x, dim, 0, length));
  }
  Tensor keys(Call& call, const Part& part, uint32_t input) const { return first(call.input(input), 1, part.num_keys); }

  // A tensor that begins with `x` along `dim` and is `pad` elsewhere.
  Tensor whole(Call& call, Tensor x, int dim, const Shape& shape, double pad) const {
    const int64_t length = x.size(dim);
    if (length == shape[static_cast<size_t>(dim)]) return x.is_contiguous() ? std::move(x) : aten_.contiguous(x);
    Tensor out = Tensor::create(call.host(), x.dtype(), shape, x.device_type(), x.view().device_index);
    aten_.fill_(out, pad);
    aten_.copy_(aten_.narrow(out, dim, 0, length), x);
    return out;
  }

  const Operators& aten_;
  const MaskSpec spec_;
  const double scale_;
  const std::unique_ptr<Kernel> tiles_;
};

}  // namespace

bool cuda_part_uses_flash(const NodeView& node) {
  const MaskSpec spec(node.op(0));
  return flash_takes_tensors(node) && !spec.prefix && spec.chunk == 0 && spec.window == 0;
}

std::unique_ptr<Kernel> make_cuda_part_kernel(Shared& shared, const NodeView& node) {
  if (cuda_part_uses_flash(node)) return std::make_unique<FlashPart>(shared, node);
  return make_tiles(shared, node);
}

std::string cuda_refusal(const NodeView& node) {
  const uint32_t dtype = node.input(0).dtype();
  if (dtype != CHASSIS_DTYPE_F32 && dtype != CHASSIS_DTYPE_BF16 && dtype != CHASSIS_DTYPE_F16)
    return std::string(dtype_name(dtype)) + " is not supported on CUDA; float32, float16 and bfloat16 are";
  const int64_t qk = node.input(0).size(3), v = node.input(2).size(3), multiple = dtype == CHASSIS_DTYPE_F32 ? 4 : 8;
  if (qk % multiple != 0 || v % multiple != 0)
    return "head dims " + std::to_string(qk) + " and " + std::to_string(v) + " are not multiples of " +
           std::to_string(multiple) + ", as LibTorch's CUDA kernels need";
  return "";
}

std::unique_ptr<Kernel> make_cuda_kernel(Shared& shared, const NodeView& node) {
  if (uses_flash(node)) return std::make_unique<Flash>(shared.aten, node.op(0));
  return std::make_unique<Efficient>(shared.aten, node.op(0));
}

Shape cuda_saved_shape(const NodeView& node) {
  const OperandView q = node.input(0);
  return {q.size(0), q.size(2), uses_flash(node) ? q.size(1) : rounded_up(q.size(1), kLseAlignment)};
}

uint64_t cuda_workspace_bytes(const NodeView& node, bool backward) {
  if (uses_flash(node)) return 0;
  const MaskSpec spec(node.op(0));
  const OperandView q = node.input(0), k = node.input(1), v = node.input(2);
  const uint64_t element = dtype_bytes(q.dtype()), groups = static_cast<uint64_t>(q.size(2) / k.size(2));
  const auto repeated = groups * static_cast<uint64_t>(k.num_elements() + v.num_elements()) * element;
  const bool batched = spec.document || spec.prefix;
  const bool masked = batched || spec.window > 0 || spec.chunk > 0 || (spec.causal && q.size(1) != k.size(1));
  const auto pairs = static_cast<uint64_t>(masked ? q.size(1) * rounded_up(k.size(1), kBiasAlignment) : 0);
  // The bias and two masks for each row, and the three masks of bools that all rows share.
  const uint64_t masks = pairs * ((batched ? static_cast<uint64_t>(q.size(0)) : 1) * (element + 2) + 3);
  return (backward ? 2 : 1) * repeated + masks;
}

}  // namespace sdpa
