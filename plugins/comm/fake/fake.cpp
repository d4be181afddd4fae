// fake: simulates any rank of any world in one process. It moves nothing and counts everything; for plans and tests.
#include "chassis/comm_backend.hpp"
#include "chassis/metrics.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class NoWork final : public BackendWork {
 public:
  bool wait(std::chrono::nanoseconds) override { return true; }
  bool done() noexcept override { return true; }
};

// A call's bytes in the memory of this rank: the larger of what it sends and what it receives.
uint64_t bytes_of(const chassis_collective_t& call, uint32_t size) {
  const auto total = [&](const uint64_t* counts, uint64_t count, uint32_t parts) {
    if (counts == nullptr)
      return parts * CommParts(nullptr, count, 1, call.dtype).total();  // costs the same for any world size
    return CommParts(counts, count, parts, call.dtype).total();
  };
  switch (call.op) {
    case CHASSIS_COMM_ALL_GATHER:
    case CHASSIS_COMM_REDUCE_SCATTER:
      return total(call.counts, call.count, size);
    case CHASSIS_COMM_ALL_TO_ALL:
      return std::max(total(call.counts, call.count, size), total(call.recv_counts, call.count, size));
    default:
      return total(nullptr, call.count, 1);
  }
}

// Metrics of the step: "<group>/<op>_calls" and "_bytes", and "order", a hash of the calls in their order.
class Group final : public BackendGroup {
 public:
  Group(const Host& host, const CommGroupDesc& desc, uint64_t& order)
      : host_(host), name_(desc.name), size_(desc.size), order_(order) {}

  std::unique_ptr<BackendWork> start(std::span<const chassis_collective_t> calls, void*) override {
    for (const chassis_collective_t& call : calls) {
      const std::string_view op = comm_op_name(call.op);
      const uint64_t bytes = bytes_of(call, size_);
      add_metric(host_, join(name_, "/", op, "_calls"), 1);
      add_metric(host_, join(name_, "/", op, "_bytes"), static_cast<double>(bytes));
      mix(join(name_, " ", op, " ", bytes, " ", text_of(call.name)));
    }
    set_metric(host_, "order", static_cast<double>(order_ >> 16));  // 48 bits, which a double holds exactly
    return std::make_unique<NoWork>();
  }

 private:
  // FNV-1a.
  void mix(std::string_view text) {
    for (unsigned char c : text) order_ = (order_ ^ c) * 0x100000001b3u;
  }

  const Host& host_;
  const std::string name_;
  const uint32_t size_;
  uint64_t& order_;
};

class Fake final : public CommBackend {
 public:
  static constexpr std::string_view kDoc = "moves nothing and counts everything; for plans and tests";
  static constexpr uint32_t kProperties = CHASSIS_COMM_MOVES_NOTHING;
  using CommBackend::CommBackend;

  void supports(uint32_t, int32_t) override {}
  std::unique_ptr<BackendGroup> create_group(const CommGroupDesc& desc) override {
    return std::make_unique<Group>(host(), desc, order_);
  }

 private:
  uint64_t order_ = 0xcbf29ce484222325u;
};

}  // namespace

CHASSIS_PLUGIN(
    "requires=chassis.metrics/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    Fake)
