// slice and concat: parts of the last dim.
#include "values.hpp"

namespace reference {
namespace {

class Slice : public Kernel {
 public:
  explicit Slice(const NodeView& node)
      : planned_x_(node.input(0), node.output(0)),
        planned_y_(node.output(0), node.input(0)),
        dtype_(node.input(0).dtype()),
        first_(node.op(0).attr_int("first")),
        all_(node.input(0).size(-1)),
        size_(node.output(0).size(-1)) {}

  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0);
    const Values xs = read(x);
    Values y;
    for (int64_t r = 0; r < x.num_elements() / all_; ++r)
      y.insert(y.end(), xs.begin() + r * all_ + first_, xs.begin() + r * all_ + first_ + size_);
    write_output(call, 0, dtype_, planned_y_.in_call(x), y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    const Values dys = read(dy);
    const int64_t rows = dy.num_elements() / size_;
    Values dx(static_cast<size_t>(rows * all_));
    for (int64_t r = 0; r < rows; ++r) std::copy_n(dys.begin() + r * size_, size_, dx.begin() + r * all_ + first_);
    store_grad_input(call, 0, dtype_, planned_x_.in_call(dy), dx);
  }

 private:
  PlannedSizes planned_x_, planned_y_;
  uint32_t dtype_;
  int64_t first_, all_, size_;
};

class Concat : public Kernel {
 public:
  explicit Concat(const NodeView& node)
      : planned_a_(node.input(0), node.output(0)),
        planned_b_(node.input(1), node.output(0)),
        planned_y_(node.output(0), node.input(0)),
        dtype_(node.input(0).dtype()),
        a_size_(node.input(0).size(3)),
        b_size_(node.input(1).size(3)),
        heads_(node.input(0).size(2)),
        heads_of_b_(node.input(1).size(2)) {}

  void forward(Call& call) override {
    const BorrowedTensor a = call.input(0), b = call.input(1);
    const Values as = read(a), bs = read(b);
    Values y;
    for (int64_t r = 0; r < a.num_elements() / a_size_; ++r) {
      y.insert(y.end(), as.begin() + r * a_size_, as.begin() + (r + 1) * a_size_);
      y.insert(y.end(), bs.begin() + row_of_b(r) * b_size_, bs.begin() + (row_of_b(r) + 1) * b_size_);
    }
    write_output(call, 0, dtype_, planned_y_.in_call(a), y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor dy = call.grad_output(0);
    if (!dy) return;
    const int64_t width = a_size_ + b_size_, rows = dy.num_elements() / width;
    const Values dys = read(dy);
    Values da(static_cast<size_t>(rows * a_size_)), db(static_cast<size_t>(rows / heads_ * heads_of_b_ * b_size_));
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(dys.begin() + r * width, a_size_, da.begin() + r * a_size_);
      for (int64_t i = 0; i < b_size_; ++i) db[row_of_b(r) * b_size_ + i] += dys[r * width + a_size_ + i];
    }
    store_grad_input(call, 0, dtype_, planned_a_.in_call(dy), da);
    store_grad_input(call, 1, dtype_, planned_b_.in_call(dy), db);
  }

 private:
  int64_t row_of_b(int64_t row) const { return heads_of_b_ == 1 ? row / heads_ : row; }

  PlannedSizes planned_a_, planned_b_, planned_y_;
  uint32_t dtype_;
  int64_t a_size_, b_size_, heads_, heads_of_b_;
};

std::unique_ptr<Kernel> make_slice(const NodeView& node) { return std::make_unique<Slice>(node); }
std::unique_ptr<Kernel> make_concat(const NodeView& node) { return std::make_unique<Concat>(node); }

}  // namespace

std::span<const Entry> join_entries() {
  static constexpr Entry kEntries[] = {
      {"slice", make_slice, 0, {"first"}},
      {"concat", make_concat, 0, {}},
  };
  return kEntries;
}

}  // namespace reference
