// embedding and score: rows selected by an index.
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

class Score : public Kernel {
 public:
  void forward(Call& call) override {
    const BorrowedTensor x = call.input(0), lens = call.input(1), weight = call.param(0);
    const int64_t batch = x.size(0), time = x.size(1), hidden = x.size(2), labels = weight.size(0);
    const Values xs = read(x), w = read(weight);
    Values y(static_cast<size_t>(batch * labels));
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t l = 0; l < labels; ++l)
        for (int64_t h = 0; h < hidden; ++h)
          y[b * labels + l] += xs[(b * time + last(lens, b, time)) * hidden + h] * w[l * hidden + h];
    write_output(call, 0, x.dtype(), {batch, labels}, y);
  }

  void backward_inputs(Call& call) override {
    const BorrowedTensor x = call.input(0), lens = call.input(1), weight = call.param(0);
    const int64_t batch = x.size(0), time = x.size(1), hidden = x.size(2), labels = weight.size(0);
    const Values w = read(weight), dy = read_grad_output(call, static_cast<size_t>(batch * labels));
    Values dx(static_cast<size_t>(x.num_elements()));
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t l = 0; l < labels; ++l)
        for (int64_t h = 0; h < hidden; ++h)
          dx[(b * time + last(lens, b, time)) * hidden + h] += dy[b * labels + l] * w[l * hidden + h];
    store_grad_input(call, 0, x.dtype(), x.sizes(), dx);
  }

  void backward_params(Call& call) override {
    const BorrowedTensor x = call.input(0), lens = call.input(1), weight = call.param(0);
    const int64_t batch = x.size(0), time = x.size(1), hidden = x.size(2), labels = weight.size(0);
    const Values xs = read(x), dy = read_grad_output(call, static_cast<size_t>(batch * labels));
    Values dweight(static_cast<size_t>(labels * hidden));
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t l = 0; l < labels; ++l)
        for (int64_t h = 0; h < hidden; ++h)
          dweight[l * hidden + h] += dy[b * labels + l] * xs[(b * time + last(lens, b, time)) * hidden + h];
    store_grad_param(call, 0, dweight);
  }

 private:
  static int64_t last(const BorrowedTensor& lens, int64_t b, int64_t time) {
    const int64_t len = lens.data<int32_t>()[b];
    if (len < 1 || len > time)
      throw Failure(CHASSIS_INVALID_ARGUMENT, "length ", len, " of row ", b, " is outside 1 … ", time);
    return len - 1;
  }
};

std::unique_ptr<Kernel> make_embedding(const NodeView& node) { return std::make_unique<Embedding>(node); }
std::unique_ptr<Kernel> make_score(const NodeView&) { return std::make_unique<Score>(); }

}  // namespace

std::span<const Entry> lookup_entries() {
  static constexpr Entry kEntries[] = {
      {"embedding", make_embedding, 1, {"first"}},
      {"score", make_score, 3, {}},
  };
  return kEntries;
}

}  // namespace reference
