// Products of rows in memory and one weight in 4 bits, on the CPU: parts of the weight are dequantized into the cache
// and multiplied there.
#pragma once

#include "chassis/host.hpp"
#include "weight.hpp"

namespace bnb4 {

// The division of a weight into panels of whole rows, and the bytes of a panel. `m` rows are multiplied, or fewer.
struct Panels {
  int64_t rows, columns, panel_rows;
  bool in_bf16 = false;  // else in fp32

  Panels(const chassis::Host& host, const WeightShape& weight, uint32_t dtype, int64_t m, bool or_fewer);
  int64_t bytes() const;

 private:
  int64_t most_rows(int64_t fit) const;
};

// x, y, dy and dx are rows in fp32 or bf16, one after the other. Scratch memory is passed with each call.
class Multiplier {
 public:
  // `rows`: the planned number of rows of a call. A call may have more, with proportionally more scratch memory; or
  // fewer, if `or_fewer` without memory that is not planned.
  Multiplier(const chassis::Host& host, const WeightShape& shape, uint32_t dtype, int64_t rows, bool or_fewer = false)
      : host_(host), dtype_(dtype), panels_(host, shape, dtype, rows, or_fewer), planned_rows_(rows) {}

  uint64_t forward_bytes() const;
  uint64_t backward_bytes() const;

  // y = x · Wᵀ + bias; bias may be NULL.
  void forward(const Weight& weight, int64_t rows, const void* x, const void* bias, void* y, void* scratch) const;
  // dx = dy · W, or dx += if `adds`.
  void backward(const Weight& weight, int64_t rows, const void* dy, void* dx, bool adds, void* scratch) const;

 private:
  float* after_panel(void* panel) const { return static_cast<float*>(panel) + panels_.bytes() / 4; }
  template <typename T>
  void multiply(const Weight& weight, int64_t rows, const T* x, const T* bias, T* y, void* scratch) const;
  void multiply_in_bf16(const Weight& weight, int64_t rows, const uint16_t* x, const uint16_t* bias, uint16_t* y,
                        void* scratch) const;
  template <typename T>
  void multiply_rows(const Weight& weight, int64_t rows, const T* x, const T* bias, T* y, float* split) const;
  template <typename T>
  void multiply_back(const Weight& weight, int64_t rows, const T* dy, T* dx, bool adds, void* scratch) const;
  template <typename T, typename Factor>
  void add_panels(const Weight& weight, int64_t rows, const Factor* dy, Factor* panel, float* dx, bool adds) const;
  void store_sums(const float* sums, int64_t count, uint16_t* out, bool adds) const;

  const chassis::Host& host_;
  const uint32_t dtype_;
  const Panels panels_;
  const int64_t planned_rows_;
};

}  // namespace bnb4
