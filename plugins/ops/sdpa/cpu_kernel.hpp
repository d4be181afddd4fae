// The base of the kernels for the CPU.
#pragma once

#include <cmath>
#include <cstring>
#include <utility>

#include "kernels.hpp"

namespace sdpa {

class CpuKernel : public Kernel {
 protected:
  CpuKernel(const Operators& aten, const OpView& op) : aten_(aten), spec_(op), scale_(op.attr_float("scale")) {}

  // The sizes and ids of a call whose rows have `keys` keys.
  Problem problem_of(const Call& call, int64_t keys) const {
    const BorrowedTensor q = call.input(0), documents = call.input(3), prefixes = call.input(4);
    Problem problem;
    problem.batch = q.size(0);
    problem.time = q.size(1);
    problem.keys = keys;
    problem.offset = call.query_offset();
    if (documents) {
      if (documents.size(1) != keys)
        throw Failure(CHASSIS_INVALID_ARGUMENT, "document_ids has ", documents.size(1), " positions, expected ", keys,
                      ", one per key");
      problem.documents.assign(documents.data<int32_t>(), documents.data<int32_t>() + documents.num_elements());
      if (spec_.chunk > 0) problem.document_begins = document_begins(problem.documents, problem.batch, keys);
    }
    if (prefixes) problem.prefixes.assign(prefixes.data<int32_t>(), prefixes.data<int32_t>() + prefixes.num_elements());
    return problem;
  }

  // [B, T, h, …] ↔ [B, h, T, …], without a copy.
  Tensor heads_first(const BorrowedTensor& x) const { return aten_.transpose(x, 1, 2); }
  Tensor packed(Tensor x) const { return x.is_contiguous() ? std::move(x) : aten_.contiguous(x); }

  const Operators& aten_;
  const MaskSpec spec_;
  const double scale_;
};

// -inf of a floating dtype, to be written into a mask.
class MinusInfinity {
 public:
  explicit MinusInfinity(uint32_t dtype) : bytes_(static_cast<size_t>(dtype_bytes(dtype))) {
    const double wide = -INFINITY;
    const float single = -INFINITY;
    const uint16_t half = dtype == CHASSIS_DTYPE_BF16 ? 0xff80 : 0xfc00;
    std::memcpy(value_,
                bytes_ == 8   ? static_cast<const void*>(&wide)
                : bytes_ == 4 ? static_cast<const void*>(&single)
                              : static_cast<const void*>(&half),
                bytes_);
  }
  void write(void* element) const { std::memcpy(element, value_, bytes_); }

 private:
  const size_t bytes_;
  char value_[8];
};

}  // namespace sdpa
