// topk_logp: the log-probability of the label, and those of further ids at a temperature; and the same over a part of
// the classes. Backward computes all sums again.
#include <cmath>

#include "values.hpp"

namespace reference {
namespace {

// By row; `targets` also by id.
struct Sums {
  Values log_sum, target, top_log_sum, targets;
};

// Gives log-probabilities the gradients of the sums that they are differences of, and masks both.
class Masks {
 public:
  Masks(const BorrowedTensor& labels, const BorrowedTensor& ids, int64_t ignore_index)
      : labels_(labels.data<int32_t>()),
        ids_(ids.data<int32_t>()),
        num_ids_(static_cast<size_t>(ids.size(-1))),
        ignore_index_(ignore_index) {}

  Values logps(const Sums& sums) const {
    Values out(sums.log_sum.size());
    for (size_t r = 0; r < out.size(); ++r)
      if (has_label(r)) out[r] = sums.target[r] - sums.log_sum[r];
    return out;
  }
  Values top_logps(const Sums& sums) const {
    Values out(sums.targets.size());
    for (size_t i = 0; i < out.size(); ++i)
      if (has_id(i)) out[i] = sums.targets[i] - sums.top_log_sum[i / num_ids_];
    return out;
  }
  Sums gradients(const Values& by_logp, const Values& by_top_logp) const {
    Sums by{Values(by_logp.size()), Values(by_logp.size()), Values(by_logp.size()), Values(by_top_logp.size())};
    for (size_t r = 0; r < by_logp.size(); ++r) {
      if (!has_label(r)) continue;
      by.target[r] = by_logp[r];
      by.log_sum[r] = -by_logp[r];
    }
    for (size_t i = 0; i < by_top_logp.size(); ++i) {
      if (!has_id(i)) continue;
      by.targets[i] = by_top_logp[i];
      by.top_log_sum[i / num_ids_] -= by_top_logp[i];
    }
    return by;
  }

 private:
  bool has_label(size_t r) const { return labels_[r] != ignore_index_; }
  bool has_id(size_t i) const { return ids_[i] >= 0 && has_label(i / num_ids_); }

  const int32_t* labels_;
  const int32_t* ids_;
  size_t num_ids_;
  int64_t ignore_index_;
};

class PartialTopkLogp : public Kernel {
 public:
  explicit PartialTopkLogp(const NodeView& node)
      : PartialTopkLogp(node, node.op(0).attr_int("first"), node.op(0).attr_int("count")) {}

  void forward(Call& call) override {
    const Sums out = sums(call);
    const std::vector<int64_t> column = sizes_of(call.input(1));
    const uint32_t dtype = result_dtype(call);
    write_output(call, 0, dtype, column, out.log_sum);
    write_output(call, 1, dtype, column, out.target);
    write_output(call, 2, dtype, column, out.top_log_sum);
    write_output(call, 3, dtype, sizes_of(call.input(2)), out.targets);
  }

  void backward_inputs(Call& call) override {
    const auto rows = static_cast<size_t>(call.input(1).num_elements()),
               ids = static_cast<size_t>(call.input(2).num_elements());
    add_gradients(call, {read_grad_output(call, rows, 0), read_grad_output(call, rows, 1),
                         read_grad_output(call, rows, 2), read_grad_output(call, ids, 3)});
  }

 protected:
  PartialTopkLogp(const NodeView& node, int64_t first, int64_t count)
      : ignore_index_(node.op(0).attr_int("ignore_index", -100)),
        temperature_(node.op(0).attr_float("temperature")),
        first_(first),
        count_(count) {}

  static uint32_t result_dtype(const Call& call) { return at_least_f32(call.input(0).dtype()); }

  Sums sums(const Call& call) const {
    const int64_t columns = call.input(0).size(-1), num_ids = call.input(2).size(-1);
    const Values xs = read(call.input(0));
    Sums out;
    for (int64_t r = 0; r < call.input(1).num_elements(); ++r) {
      const double* const row = &xs[r * columns];
      const Values scaled = scaled_row(row);
      out.log_sum.push_back(count_ == 0 ? -INFINITY : log_sum_exp(row, count_));
      out.top_log_sum.push_back(count_ == 0 ? -INFINITY : log_sum_exp(scaled.data(), count_));
      const int64_t label = column_of_label(call, r);
      out.target.push_back(label < 0 ? 0 : row[label]);
      for (int64_t k = 0; k < num_ids; ++k) {
        const int64_t id = column_of(call.input(2).data<int32_t>()[r * num_ids + k]);
        out.targets.push_back(id < 0 ? 0 : scaled[id]);
      }
    }
    return out;
  }

  // `by`: the gradients of the sums.
  void add_gradients(Call& call, const Sums& by) const {
    const BorrowedTensor logits = call.input(0);
    const int64_t columns = logits.size(-1), num_ids = call.input(2).size(-1);
    const Values xs = read(logits);
    Values dx(xs.size());
    for (int64_t r = 0; r < call.input(1).num_elements() && count_ > 0; ++r) {
      const double* const row = &xs[r * columns];
      double* const to = &dx[r * columns];
      const Values scaled = scaled_row(row);
      const double log_sum = log_sum_exp(row, count_), top_log_sum = log_sum_exp(scaled.data(), count_);
      for (int64_t i = 0; i < count_; ++i)
        to[i] = by.log_sum[r] * std::exp(row[i] - log_sum) +
                by.top_log_sum[r] * std::exp(scaled[i] - top_log_sum) / temperature_;
      if (const int64_t label = column_of_label(call, r); label >= 0) to[label] += by.target[r];
      for (int64_t k = 0; k < num_ids; ++k) {
        const int64_t id = column_of(call.input(2).data<int32_t>()[r * num_ids + k]);
        if (id >= 0) to[id] += by.targets[r * num_ids + k] / temperature_;
      }
    }
    store_grad_input(call, 0, logits.dtype(), logits.sizes(), dx);
  }

  Masks masks(const Call& call) const { return {call.input(1), call.input(2), ignore_index_}; }

 private:
  Values scaled_row(const double* row) const {
    Values scaled(row, row + count_);
    for (double& value : scaled) value /= temperature_;
    return scaled;
  }
  // -1: another part has it, or none.
  int64_t column_of(int64_t id) const { return id >= first_ && id < first_ + count_ ? id - first_ : -1; }
  int64_t column_of_label(const Call& call, int64_t r) const {
    const int64_t label = call.input(1).data<int32_t>()[r];
    return label == ignore_index_ ? -1 : column_of(label);
  }

  int64_t ignore_index_;
  double temperature_;
  int64_t first_, count_;
};

class TopkLogp final : public PartialTopkLogp {
 public:
  explicit TopkLogp(const NodeView& node) : PartialTopkLogp(node, 0, node.input(0).local_shape().back()) {}

  void forward(Call& call) override {
    require_inside(call);
    const Sums all = sums(call);
    const uint32_t dtype = result_dtype(call);
    write_output(call, 0, dtype, sizes_of(call.input(1)), masks(call).logps(all));
    write_output(call, 1, dtype, sizes_of(call.input(2)), masks(call).top_logps(all));
  }

  void backward_inputs(Call& call) override {
    const auto rows = static_cast<size_t>(call.input(1).num_elements()),
               ids = static_cast<size_t>(call.input(2).num_elements());
    add_gradients(call, masks(call).gradients(read_grad_output(call, rows, 0), read_grad_output(call, ids, 1)));
  }

 private:
  static void require_inside(const Call& call) {
    const int64_t vocab = call.input(0).size(-1);
    for (const uint32_t input : {1u, 2u}) {
      const BorrowedTensor ids = call.input(input);
      for (int64_t i = 0; i < ids.num_elements(); ++i)
        if (ids.data<int32_t>()[i] >= vocab)
          throw Failure(CHASSIS_INVALID_ARGUMENT, "id ", ids.data<int32_t>()[i], " is outside a vocabulary of ", vocab);
    }
  }
};

class TotalTopkLogp final : public Kernel {
 public:
  explicit TotalTopkLogp(const NodeView& node)
      : ignore_index_(node.op(0).attr_int("ignore_index", -100)), dtype_(node.input(0).dtype()) {}

  void forward(Call& call) override {
    const Sums sums{read(call.input(0)), read(call.input(1)), read(call.input(2)), read(call.input(3))};
    const uint32_t dtype = at_least_f32(dtype_);
    write_output(call, 0, dtype, sizes_of(call.input(4)), masks(call).logps(sums));
    write_output(call, 1, dtype, sizes_of(call.input(5)), masks(call).top_logps(sums));
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor labels = call.input(4), ids = call.input(5);
    const Sums by = masks(call).gradients(read_grad_output(call, static_cast<size_t>(labels.num_elements()), 0),
                                          read_grad_output(call, static_cast<size_t>(ids.num_elements()), 1));
    store_grad_input(call, 0, dtype_, labels.sizes(), by.log_sum);
    store_grad_input(call, 1, dtype_, labels.sizes(), by.target);
    store_grad_input(call, 2, dtype_, labels.sizes(), by.top_log_sum);
    store_grad_input(call, 3, dtype_, ids.sizes(), by.targets);
  }

 private:
  Masks masks(const Call& call) const { return {call.input(4), call.input(5), ignore_index_}; }

  int64_t ignore_index_;
  uint32_t dtype_;
};

template <class Made>
std::unique_ptr<Kernel> make_topk(const NodeView& node) {
  return std::make_unique<Made>(node);
}

}  // namespace

std::span<const Entry> topk_logp_entries() {
  static constexpr Entry kEntries[] = {
      {"topk_logp", make_topk<TopkLogp>, 0b111, {"ignore_index", "temperature"}},
      {"partial_topk_logp", make_topk<PartialTopkLogp>, 0b111, {"ignore_index", "temperature", "first", "count"}},
      {"total_topk_logp", make_topk<TotalTopkLogp>, 0b110000, {"ignore_index"}},
  };
  return kEntries;
}

}  // namespace reference
