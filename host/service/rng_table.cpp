// chassis.rng/1: random streams for plugins, and for the host.
#include "chassis/service/rng.h"

#include <ATen/Parallel.h>

#include "host/base/hash.hpp"
#include "host/service/philox.hpp"
#include "host/service/rng.hpp"
#include "host/plugin/status.hpp"
#include "host/service/tables.hpp"

namespace chassis {
namespace {

constexpr int64_t kGrain = 1 << 15;

template <typename Fill>
void on_all_threads(uint64_t seed, std::string_view name, uint64_t begin, uint64_t count, float* out, Fill fill) {
  const uint64_t key = hash64(name, seed);
  at::parallel_for(0, static_cast<int64_t>(count), kGrain, [&](int64_t from, int64_t to) {
    fill(key, begin + static_cast<uint64_t>(from), static_cast<uint64_t>(to - from), out + from);
  });
}

class RngTable final : public Table {
 public:
  explicit RngTable(const TableContext& context) : seed_(context.seed) {
    table_.struct_size = sizeof table_;
    table_.impl = this;
    table_.uniform = [](const chassis_rng_t* t, chassis_str_t name, uint64_t begin, uint64_t count, float* out) {
      random_uniform(seed(t), view_of(name), begin, {out, count});
    };
    table_.normal = [](const chassis_rng_t* t, chassis_str_t name, uint64_t begin, uint64_t count, float* out) {
      random_normal(seed(t), view_of(name), begin, {out, count});
    };
  }
  const void* get() const override { return &table_; }

 private:
  static uint64_t seed(const chassis_rng_t* t) { return static_cast<const RngTable*>(t->impl)->seed_; }
  uint64_t seed_;
  chassis_rng_t table_{};
};

}  // namespace

void random_uniform(uint64_t seed, std::string_view name, uint64_t begin, std::span<float> out) {
  on_all_threads(seed, name, begin, out.size(), out.data(), philox_uniform);
}

void random_normal(uint64_t seed, std::string_view name, uint64_t begin, std::span<float> out) {
  on_all_threads(seed, name, begin, out.size(), out.data(), philox_normal);
}

std::unique_ptr<Table> make_rng_table(const TableContext& context) { return std::make_unique<RngTable>(context); }

}  // namespace chassis
