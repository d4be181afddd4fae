// gloo: collectives over TCP in CPU memory, on any machine. c10d's Gloo sends the bytes directly from rank to rank;
// sums are computed here, in the order of the ranks, so that every strategy adds in the same order.
#include "chassis/plugin.hpp"
#include "group.hpp"

namespace comm_gloo {
namespace {

class Gloo final : public CommBackend {
 public:
  static constexpr std::string_view kDoc = "TCP between processes, in the memory of the CPU";
  static const Options& options() {
    static const Options schema = {
        option("interface", "").doc("network interface, such as \"eth0\"; empty: the one that reaches the other ranks"),
        option("connections", 1)
            .range(1, 16)
            .doc("connections to each other rank, with a thread each; more than one helps on some networks"),
    };
    return schema;
  }

  explicit Gloo(const Host& host) : CommBackend(host) {
    transport_.interface = option_value<std::string>(host, "interface");
    transport_.num_connections = option_value<int>(host, "connections");
  }

  void supports(uint32_t device_type, int32_t) override {
    if (device_type == CHASSIS_DEVICE_CUDA) refuse("gloo serves memory of the CPU; this run is on CUDA: use nccl");
    if (device_type != CHASSIS_DEVICE_CPU) refuse("gloo serves memory of the CPU only");
  }
  std::unique_ptr<BackendGroup> create_group(const CommGroupDesc& desc) override {
    return std::make_unique<GlooGroup>(host(), desc, transport_);
  }

 private:
  TransportOptions transport_;
};

}  // namespace
}  // namespace comm_gloo

CHASSIS_PLUGIN(
    "requires=chassis.options/1\n"
    "requires=chassis.memory/1\n"
    "swappable=1\n"
    "license=Apache-2.0\n",
    comm_gloo::Gloo)
