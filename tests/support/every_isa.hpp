// The tables of loops that this processor can run: of every instruction set up to its best one.
#pragma once

#include <type_traits>
#include <vector>

#include "chassis/simd.hpp"

namespace chassis::test {

// `table_of` returns the table of an instruction set, by reference.
template <typename TableOf>
auto tables_of_every_isa(TableOf&& table_of) {
  std::vector<std::remove_reference_t<decltype(table_of(isa::Baseline{}))>*> all = {&table_of(isa::Baseline{})};
#if defined(__x86_64__)
  for_best_isa([&](auto best) {
    if (best.kVectorBytes >= isa::Avx2::kVectorBytes) all.push_back(&table_of(isa::Avx2{}));
    if (best.kVectorBytes >= isa::Avx512::kVectorBytes) all.push_back(&table_of(isa::Avx512{}));
  });
#endif
  return all;
}

}  // namespace chassis::test
