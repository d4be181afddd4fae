// embedding: rows selected by an index.
#include "workspace.hpp"

namespace aten {
namespace {

class Embedding : public AtenKernel {
 public:
  Embedding(const Operators& aten, const NodeView& node)
      : AtenKernel(aten),
        planned_(node.output(0), node.input(0)),
        is_part_(node.op(0).has_attr("first")),
        first_(node.op(0).attr_int("first", 0)) {}

  void forward(Call& call) override {
    const BorrowedTensor ids = call.input(0), weight = call.param(0);
    const BorrowedTensor y = call.make_output(0, weight.dtype(), planned_.in_call(ids));
    const Tensor rows = matrix(y, weight.size(1));
    if (!is_part_) {
      aten_.index_select_out(weight, 0, aten_.view(ids, Shape{ids.num_elements()}), rows);
      return;
    }
    const PartIndex part = part_of(ids, weight.size(0));
    aten_.index_select_out(weight, 0, part.index, rows);
    aten_.masked_fill_(rows, aten_.view(part.elsewhere, Shape{ids.num_elements(), 1}), 0);
  }

  // Rationale: index_add_ would add in no fixed order on CUDA.
  void backward_params(Call& call) override {
    const BorrowedTensor ids = call.input(0), dy = call.grad_output(0), buffer = call.grad_param(0);
    if (!buffer) return;
    if (!dy) {
      if (call.grad_param_beta(0) == 0) aten_.zero_(buffer);
      return;
    }
    const int64_t vocab = buffer.size(0), step = embedding_columns(vocab, buffer.size(1));
    Tensor rows = matrix(cast(dy, buffer.dtype()), buffer.size(1)),
           all_ids = aten_.view(ids, Shape{ids.num_elements()});
    if (is_part_) {
      PartIndex part = part_of(ids, vocab);
      rows = aten_.to_dtype(rows, DtypeArg{buffer.dtype()}, false, true);
      aten_.masked_fill_(rows, aten_.view(part.elsewhere, Shape{ids.num_elements(), 1}), 0);
      all_ids = std::move(part.index);
    }
    for (int64_t begin = 0; begin < buffer.size(1); begin += step) {
      const int64_t columns = std::min(step, buffer.size(1) - begin);
      const Tensor part = aten_.narrow(rows, 1, begin, columns);
      accumulate(aten_.narrow(buffer, 1, begin, columns), call.grad_param_beta(0),
                 aten_.embedding_dense_backward(part, all_ids, vocab, -1, false));
    }
  }

 private:
  // Ids are not negative, so none is ignored.
  PartIndex part_of(const BorrowedTensor& ids, int64_t vocab) const {
    return part_index(aten_, ids, Shape{ids.num_elements()}, first_, vocab, -1);
  }

  PlannedSizes planned_;
  const bool is_part_;
  const int64_t first_;
};

std::unique_ptr<Kernel> make_embedding(const Operators& aten, const NodeView& node) {
  return std::make_unique<Embedding>(aten, node);
}

}  // namespace

int64_t embedding_columns(int64_t vocab, int64_t columns) {
  return std::clamp<int64_t>(8 * kSlabBytes / (4 * std::max<int64_t>(1, vocab)), 1, std::max<int64_t>(1, columns));
}

std::span<const Entry> lookup_entries() {
  static constexpr Entry kEntries[] = {
      {.pattern = "embedding",
       .make = make_embedding,
       .keeps_inputs = 0b1,
       .passes = 3,
       .attrs = {"first"},
       .workspace = embedding_workspace},
  };
  return kEntries;
}

}  // namespace aten
