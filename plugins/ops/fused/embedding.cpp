// Selects rows of a table by id. Backward adds the gradient directly to the parameter's buffer, each column by one
// thread, so that the result does not depend on the number of threads.
#include "kernels.hpp"

namespace fused {
namespace {

template <typename T>
class Embedding final : public Kernel {
 public:
  void forward(Call& call) override {
    const BorrowedTensor ids = call.input(0), weight = call.param(0);
    const int32_t* id = ids.data<int32_t>();
    const int64_t tokens = ids.num_elements(), n = weight.size(1);
    for (int64_t i = 0; i < tokens; ++i)
      if (id[i] < 0 || id[i] >= weight.size(0))
        throw Failure(CHASSIS_OUT_OF_RANGE, "id ", id[i], " is outside a table of ", weight.size(0), " rows");
    const T* from = weight.data<T>();
    T* to = call.output(0).data<T>();
    parallel_for(call.host(), tokens, row_grain(n), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) std::copy_n(from + id[i] * n, n, to + i * n);
    });
  }

  void backward_params(Call& call) override {
    float* dweight = grad_param(call, 0);
    const BorrowedTensor dy = call.grad_output(0), ids = call.input(0);
    if (!dweight || !dy) return;
    const int32_t* id = ids.data<int32_t>();
    const int64_t tokens = ids.num_elements(), n = call.param(0).size(1);
    const T* d = dy.data<T>();
    parallel_for(call.host(), n, column_grain(tokens), [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < tokens; ++i)
        row_loops<T>().add_to_wide(d + i * n + begin, dweight + id[i] * n + begin, end - begin);
    });
  }
};

}  // namespace

std::unique_ptr<Kernel> make_embedding(const NodeView& node) { return make_for<Embedding>(node.output(0).dtype()); }

}  // namespace fused
