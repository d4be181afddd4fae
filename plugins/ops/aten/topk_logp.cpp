// The log-probabilities of labels, and of further ids of each position at a temperature: of whole logits and in a head
// in chunks, over all classes or over a part of them; and the totals over the parts. Backward computes the logits
// again, since a row's gradient needs a factor for each id.
#include "head_chunks.hpp"
#include "workspace.hpp"

namespace aten {
namespace {

// Sums of rows, or their gradients: [rows, 1], and targets [rows, ids].
struct Sums {
  Tensor log_sum, target, top_log_sum, targets;

  Sums part(const Operators& aten, int64_t begin, int64_t rows) const {
    const auto narrow = [&](const Tensor& all) { return Tensor(aten.narrow(all, 0, begin, rows)); };
    return {narrow(log_sum), narrow(target), narrow(top_log_sum), narrow(targets)};
  }
};

class TopkRows : public PartRows {
 public:
  TopkRows(const Operators& aten, const OpView& op, int64_t first, int64_t count, double softcap = 0)
      : PartRows(aten, op, first, count, softcap), scale_(1 / op.attr_float("temperature")) {}

  // [rows, ids]
  PartIndex ids(const BorrowedTensor& ids, int64_t rows) const {
    return part_index(aten_, ids, Shape{rows, ids.size(-1)}, first_, count_, -1);
  }

  // Changes the logits.
  void store(const BorrowedTensor& logits, const Labels& labels, const PartIndex& ids, const Sums& out) const {
    if (count_ == 0) {
      aten_.fill_(out.log_sum, -INFINITY);
      aten_.fill_(out.top_log_sum, -INFINITY);
      aten_.zero_(out.target);
      aten_.zero_(out.targets);
      return;
    }
    store_picked(logits, labels, out.target);
    aten_.copy_(out.log_sum, log_sum(logits));
    if (scale_ != 1) aten_.mul_scalar_(logits, scale_);
    store_picked(logits, ids, out.targets);
    if (scale_ == 1)
      aten_.copy_(out.top_log_sum, out.log_sum);
    else
      aten_.copy_(out.top_log_sum, log_sum(logits));
  }

  // Turns logits into their gradient. `by`: the gradients of the sums.
  void to_gradient(const BorrowedTensor& logits, const Labels& labels, const PartIndex& ids, const Sums& by) const {
    if (count_ == 0) {
      aten_.zero_(logits);
      return;
    }
    if (scale_ == 1) {
      const Tensor both = aten_.to_dtype(by.log_sum, DtypeArg{logits.dtype()}, false, true);
      aten_.add_(both, by.top_log_sum);
      to_probabilities(logits, log_sum(logits), both);
    } else {
      const Tensor at_temperature = aten_.to_dtype(logits, DtypeArg{logits.dtype()}, false, true);
      aten_.mul_scalar_(at_temperature, scale_);
      to_probabilities(at_temperature, log_sum(at_temperature), by.top_log_sum);
      aten_.mul_scalar_(at_temperature, scale_);
      to_probabilities(logits, log_sum(logits), by.log_sum);
      aten_.add_(logits, at_temperature);
    }
    zero_padding(logits);
    add_picked(logits, labels, by.target);
    add_picked(logits, ids, by.targets, scale_);
  }

 private:
  double scale_;
};

// Sums over all classes become log-probabilities, and the gradients of these those of the sums.
class Totals {
 public:
  Totals(const Operators& aten, const BorrowedTensor& labels, const BorrowedTensor& ids, int64_t ignore_index)
      : aten_(aten),
        rows_(labels.num_elements()),
        num_ids_(ids.size(-1)),
        ignored_(aten.eq_scalar(aten.view(labels, Shape{rows_, 1}), ignore_index)),
        is_id_(aten.ge_scalar(aten.view(ids, Shape{rows_, num_ids_}), 0)) {}

  void store(const Sums& sums, const Tensor& logps, const Tensor& top_logps) const {
    aten_.copy_(logps, sums.target);
    aten_.sub_(logps, sums.log_sum);
    aten_.masked_fill_(logps, ignored_, 0);
    aten_.copy_(top_logps, sums.targets);
    aten_.sub_(top_logps, sums.top_log_sum);
    mask_ids(top_logps);
  }

  // They come from the gradients of outputs 0 and 1 of the call; an absent one is zero.
  Sums gradients(const Call& call) const {
    const uint32_t dtype = (call.grad_output(0) ? call.grad_output(0) : call.grad_output(1)).dtype();
    Sums by;
    by.target = gradient(call, 0, Shape{rows_, 1}, dtype);
    aten_.masked_fill_(by.target, ignored_, 0);
    by.log_sum = aten_.to_dtype(by.target, DtypeArg{dtype}, false, true);
    aten_.mul_scalar_(by.log_sum, -1);
    by.targets = gradient(call, 1, Shape{rows_, num_ids_}, dtype);
    mask_ids(by.targets);
    by.top_log_sum = aten_.sum_dims(by.targets, Shape{1}, true);
    aten_.mul_scalar_(by.top_log_sum, -1);
    return by;
  }

 private:
  Tensor gradient(const Call& call, uint32_t i, const Shape& shape, uint32_t dtype) const {
    if (const BorrowedTensor given = call.grad_output(i))
      return aten_.to_dtype(aten_.view(given, shape), DtypeArg{dtype}, false, true);
    return gradient_or_zeros(aten_, call, i, shape, call.grad_output(1 - i));
  }
  void mask_ids(const Tensor& values) const {
    aten_.masked_fill_(values, ignored_, 0);
    aten_.masked_fill_(values, aten_.eq_scalar(is_id_, 0), 0);
  }

  const Operators& aten_;
  int64_t rows_, num_ids_;
  Tensor ignored_;  // [rows, 1] bool
  Tensor is_id_;    // [rows, ids] bool
};

// The base of kernels of labels and ids. `input` is the number of the labels among the inputs; ids follow.
class TopkKernel {
 protected:
  static int64_t rows_of(const Call& call, uint32_t input) { return call.input(input).num_elements(); }
  static Totals totals(const Operators& aten, const Call& call, uint32_t input, int64_t ignore_index) {
    return {aten, call.input(input), call.input(input + 1), ignore_index};
  }
  static bool has_gradient(const Call& call, uint32_t num_outputs) {
    for (uint32_t i = 0; i < num_outputs; ++i)
      if (call.grad_output(i)) return true;
    return false;
  }
  // Allocates log-probabilities, as [rows, 1] and [rows, ids].
  static std::pair<Tensor, Tensor> logps(const Operators& aten, Call& call, uint32_t input, uint32_t dtype) {
    const BorrowedTensor labels = call.input(input), ids = call.input(input + 1);
    const BorrowedTensor first = call.make_output(0, dtype, shape_of(labels)),
                         second = call.make_output(1, dtype, shape_of(ids));
    const int64_t rows = labels.num_elements();
    return {Tensor(aten.view(first, Shape{rows, 1})), Tensor(aten.view(second, Shape{rows, ids.size(-1)}))};
  }
  // Sums that only this call needs.
  static Sums own_sums(const Call& call, uint32_t dtype) {
    const BorrowedTensor labels = call.input(1), ids = call.input(2);
    const auto make = [&](int64_t columns) {
      return Tensor::create(call.host(), dtype, Shape{labels.num_elements(), columns}, labels.device_type(),
                            labels.view().device_index);
    };
    return {make(1), make(1), make(1), make(ids.size(-1))};
  }
  // Sums that are the outputs of a part.
  static Sums output_sums(const Operators& aten, Call& call, uint32_t dtype) {
    const BorrowedTensor labels = call.input(1), ids = call.input(2);
    const int64_t rows = labels.num_elements();
    const auto make = [&](uint32_t i, const BorrowedTensor& like, int64_t columns) {
      return Tensor(aten.view(call.make_output(i, dtype, shape_of(like)), Shape{rows, columns}));
    };
    return {make(0, labels, 1), make(1, labels, 1), make(2, labels, 1), make(3, ids, ids.size(-1))};
  }
  // The gradients of the outputs of a part; zeros for absent ones.
  static Sums part_gradients(const Operators& aten, const Call& call) {
    const int64_t rows = call.input(1).num_elements(), num_ids = call.input(2).size(-1);
    uint32_t present = 0;
    while (!call.grad_output(present)) ++present;
    const BorrowedTensor like = call.grad_output(present);
    const auto column = [&](uint32_t i, int64_t columns) {
      return gradient_or_zeros(aten, call, i, Shape{rows, columns}, like);
    };
    return {column(0, 1), column(1, 1), column(2, 1), column(3, num_ids)};
  }
};

// Over whole logits. `is_part`: the outputs are sums, else log-probabilities.
class TopkLogp : public AtenKernel, TopkKernel {
 public:
  TopkLogp(const Operators& aten, TopkRows rows, int64_t ignore_index, bool is_part)
      : AtenKernel(aten), rows_(rows), ignore_index_(ignore_index), is_part_(is_part) {}

  void forward(Call& call) override {
    const uint32_t dtype = wide(call.input(0).dtype());
    const Sums sums = is_part_ ? output_sums(aten_, call, dtype) : own_sums(call, dtype);
    rows_.store(wide_copy(call.input(0)), rows_.labels(call.input(1)), rows_.ids(call.input(2), rows_of(call, 1)),
                sums);
    if (is_part_) return;
    const auto [first, second] = logps(aten_, call, 1, dtype);
    totals(aten_, call, 1, ignore_index_).store(sums, first, second);
  }

  void backward_inputs(Call& call) override {
    if (!call.wants_grad_input(0) || !has_gradient(call, is_part_ ? 4 : 2)) return;
    const BorrowedTensor logits = call.input(0);
    const Tensor gradient = wide_copy(logits);
    rows_.to_gradient(gradient, rows_.labels(call.input(1)), rows_.ids(call.input(2), rows_of(call, 1)),
                      is_part_ ? part_gradients(aten_, call) : totals(aten_, call, 1, ignore_index_).gradients(call));
    store_grad_input(call, 0, logits.dtype(), aten_.view(gradient, shape_of(logits)));
  }

 private:
  TopkRows rows_;
  int64_t ignore_index_;
  bool is_part_;
};

class LinearTopkLogp : public HeadChunks<TopkRows>, TopkKernel {
 public:
  LinearTopkLogp(const Operators& aten, TopkRows rows, int64_t ignore_index, bool is_part)
      : HeadChunks(aten, rows), ignore_index_(ignore_index), is_part_(is_part) {}

  void forward(Call& call) override {
    const uint32_t dtype = wide(call.input(0).dtype());
    const Sums sums = is_part_ ? output_sums(aten_, call, dtype) : own_sums(call, dtype);
    for_chunks(call, false, [&](const Chunk& chunk) {
      rows_.store(chunk.logits, chunk.labels, ids_of(call, chunk), sums.part(aten_, chunk.begin, chunk.rows));
    });
    if (is_part_) return;
    const auto [first, second] = logps(aten_, call, 1, dtype);
    totals(aten_, call, 1, ignore_index_).store(sums, first, second);
  }

  void backward_inputs(Call& call) override {
    if (!call.wants_grad_input(0)) return;
    const bool adds = static_cast<bool>(call.grad_input(0));
    const Tensor dx = init_grad_input(call);
    for_gradients(call, [&](const Chunk& chunk) { add_grad_input(call, chunk, dx, adds); });
  }

  void backward_params(Call& call) override {
    init_grad_params(call);
    for_gradients(call, [&](const Chunk& chunk) { add_grad_params(call, chunk); });
  }

 private:
  PartIndex ids_of(const Call& call, const Chunk& chunk) const {
    const BorrowedTensor ids = call.input(2);
    const Tensor all = aten_.view(ids, Shape{rows_of(call, 1), ids.size(-1)});
    return rows_.ids(aten_.narrow(all, 0, chunk.begin, chunk.rows), chunk.rows);
  }

  template <typename Body>
  void for_gradients(Call& call, Body&& body) const {
    if (!has_gradient(call, is_part_ ? 4 : 2)) return;
    const Sums by = is_part_ ? part_gradients(aten_, call) : totals(aten_, call, 1, ignore_index_).gradients(call);
    for_chunks(call, true, [&](const Chunk& chunk) {
      rows_.to_gradient(chunk.logits, chunk.labels, ids_of(call, chunk), by.part(aten_, chunk.begin, chunk.rows));
      if (chunk.slopes) aten_.mul_(chunk.logits, chunk.slopes);
      body(chunk);
    });
  }

  int64_t ignore_index_;
  bool is_part_;
};

class TotalTopkLogp : public AtenKernel, TopkKernel {
 public:
  TotalTopkLogp(const Operators& aten, const NodeView& node)
      : AtenKernel(aten), ignore_index_(node.op(0).attr_int("ignore_index", -100)), dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const int64_t rows = rows_of(call, 4), num_ids = call.input(5).size(-1);
    const auto column = [&](uint32_t i, int64_t columns) {
      return Tensor(aten_.view(call.input(i), Shape{rows, columns}));
    };
    const auto [first, second] = logps(aten_, call, 4, wide(dtype_));
    totals(aten_, call, 4, ignore_index_)
        .store({column(0, 1), column(1, 1), column(2, 1), column(3, num_ids)}, first, second);
  }

  void backward_inputs(Call& call) override {
    if (!has_gradient(call, 2)) return;
    Sums by = totals(aten_, call, 4, ignore_index_).gradients(call);
    const Shape column = shape_of(call.input(4));
    store_grad_input(call, 0, dtype_, aten_.view(by.log_sum, column));
    store_grad_input(call, 1, dtype_, aten_.view(by.target, column));
    store_grad_input(call, 2, dtype_, aten_.view(by.top_log_sum, column));
    store_grad_input(call, 3, dtype_, aten_.view(by.targets, shape_of(call.input(5))));
  }

 private:
  int64_t ignore_index_;
  uint32_t dtype_;  // of the sums
};

template <class Made>
std::unique_ptr<Kernel> make_topk(const Operators& aten, const NodeView& node) {
  const OpView& op = node.op(node.num_ops() - 1);
  const bool is_part = op.id() == "partial_topk_logp";
  const int64_t columns = node.has_param(0) ? node.param(0).size(0) : node.input(0).local_shape().back();
  const double cap = node.num_ops() == 3 ? node.op(1).attr_float("cap") : 0;
  TopkRows rows(aten, op, is_part ? op.attr_int("first") : 0, is_part ? op.attr_int("count") : columns, cap);
  return std::make_unique<Made>(aten, rows, op.attr_int("ignore_index", -100), is_part);
}

std::unique_ptr<Kernel> make_total_topk_logp(const Operators& aten, const NodeView& node) {
  return std::make_unique<TotalTopkLogp>(aten, node);
}

}  // namespace

std::span<const Entry> topk_logp_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "linear+softcap+topk_logp",
       .make = make_topk<LinearTopkLogp>,
       .keeps_inputs = 0b111,
       .passes = 14,
       .attrs = {"cap", "ignore_index", "temperature"},
       .workspace = topk_logp_workspace},
      {.pattern = "linear+topk_logp",
       .make = make_topk<LinearTopkLogp>,
       .keeps_inputs = 0b111,
       .passes = 11,
       .attrs = {"ignore_index", "temperature"},
       .workspace = topk_logp_workspace},
      {.pattern = "topk_logp",
       .make = make_topk<TopkLogp>,
       .keeps_inputs = 0b111,
       .passes = 9,
       .attrs = {"ignore_index", "temperature"},
       .workspace = topk_logp_workspace},
      {.pattern = "linear+softcap+partial_topk_logp",
       .make = make_topk<LinearTopkLogp>,
       .keeps_inputs = 0b111,
       .passes = 14,
       .attrs = {"cap", "ignore_index", "temperature", "first", "count"},
       .workspace = topk_logp_workspace},
      {.pattern = "linear+partial_topk_logp",
       .make = make_topk<LinearTopkLogp>,
       .keeps_inputs = 0b111,
       .passes = 11,
       .attrs = {"ignore_index", "temperature", "first", "count"},
       .workspace = topk_logp_workspace},
      {.pattern = "partial_topk_logp",
       .make = make_topk<TopkLogp>,
       .keeps_inputs = 0b111,
       .passes = 9,
       .attrs = {"ignore_index", "temperature", "first", "count"},
       .workspace = topk_logp_workspace},
      {.pattern = "total_topk_logp",
       .make = make_total_topk_logp,
       .keeps_inputs = 0b110000,
       .passes = 2,
       .attrs = {"ignore_index"}},
  };
  return kEntries;
}

}  // namespace aten
