// Offers the tiles of sdpa for every node on any device, so that tests need no GPU.
#include "plugins/ops/sdpa/kernels.hpp"

#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class SdpaTiles final : public Ops {
 public:
  static constexpr std::string_view kDoc = "the tiles of sdpa, for tests";
  static constexpr std::string_view kPatterns[] = {"attention"};
  explicit SdpaTiles(const Host& host) : Ops(host), shared_(host) {}

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than(
        {"scale", "causal", "window", "chunk", "document", "prefix", "query_part", "key_part"});
    if (const std::string why = sdpa::tiles_refusal(node); !why.empty()) refuse(why);
    return 1.0;
  }
  void infer(const NodeView& node, Infer& out) override { sdpa::infer_tiles(node, true, out); }
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override { return sdpa::make_tiles(shared_, node); }

 private:
  sdpa::Shared shared_;
};

}  // namespace

CHASSIS_PLUGIN(SDPA_OPERATORS(SDPA_LINE)
               "requires=chassis.dispatch/1\nrequires=chassis.tensor/1\nrequires=chassis.task/1\n"
               "license=Apache-2.0\n",
               SdpaTiles)
