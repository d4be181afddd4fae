// embedding: rows selected by an index.
#include "values.hpp"

namespace reference {
namespace {

class Embedding : public Kernel {
 public:
  explicit Embedding(const NodeView& node)
      : planned_(node.output(0), node.input(0)),
        is_part_(node.op(0).has_attr("first")),
        first_(node.op(0).attr_int("first", 0)) {}

  void forward(Call& call) override {
    const BorrowedTensor ids = call.input(0), weight = call.param(0);
    const Values rows = read(weight);
    const int64_t vocab = weight.size(0), width = weight.num_elements() / vocab;
    Values y;
    for (int64_t i = 0; i < ids.num_elements(); ++i) {
      const int64_t row = ids.data<int32_t>()[i] - first_;
      const bool is_here = row >= 0 && row < vocab;
      if (!is_here && !is_part_)
        throw Failure(CHASSIS_INVALID_ARGUMENT, "id ", row, " is outside a table of ", vocab, " rows");
      if (is_here)
        y.insert(y.end(), rows.begin() + row * width, rows.begin() + (row + 1) * width);
      else
        y.insert(y.end(), static_cast<size_t>(width), 0.0);
    }
    write_output(call, 0, weight.dtype(), planned_.in_call(ids), y);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor ids = call.input(0), buffer = call.grad_param(0);
    if (!buffer) return;
    const int64_t width = buffer.num_elements() / buffer.size(0);
    const Values dy = read_grad_output(call, static_cast<size_t>(ids.num_elements() * width));
    Values dweight(static_cast<size_t>(buffer.num_elements()));
    for (int64_t i = 0; i < ids.num_elements(); ++i) {
      const int64_t row = ids.data<int32_t>()[i] - first_;
      if (row < 0 || row >= buffer.size(0)) continue;  // it belongs to another part
      for (int64_t j = 0; j < width; ++j) dweight[row * width + j] += dy[i * width + j];
    }
    store_grad_param(call, 0, dweight);
  }

 private:
  PlannedSizes planned_;
  const bool is_part_;
  const int64_t first_;
};

std::unique_ptr<Kernel> make_embedding(const NodeView& node) { return std::make_unique<Embedding>(node); }

}  // namespace

std::span<const Entry> lookup_entries() {
  static constexpr Entry kEntries[] = {
      {"embedding", make_embedding, 1, {"first"}},
  };
  return kEntries;
}

}  // namespace reference
