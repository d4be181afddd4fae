// An ops provider for pipeline_test.cpp: it claims stub/linear with a weight stored as stub4, and computes it as the
// reference does.
#include "chassis/plugin.hpp"
#include "values.hpp"

namespace {

using namespace chassis;

class StoredLinear : public Ops {
 public:
  static constexpr std::string_view kDoc = "linears with a weight stored as stub4, for tests";
  static constexpr std::string_view kPatterns[] = {"stub/linear"};
  using Ops::Ops;

  double claim(const NodeView& node) override {
    node.op(0).refuse_attrs_other_than({"storage"});
    if (node.op(0).attr_string("storage") != "stub4") refuse("the weight is not stored as stub4");
    return 0;
  }
  void infer(const NodeView& node, Infer& out) override {
    out.flags(CHASSIS_KERNEL_HOST_OUTPUTS | CHASSIS_KERNEL_ADDS_GRAD_INPUTS);
    if (node.training()) out.keeps_input(0);
  }
  std::unique_ptr<Kernel> create_kernel(const NodeView& node) override {
    return reference::linear_entries()[0].make(node);
  }
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.tensor/1\nrequires=chassis.task/1\nlicense=Apache-2.0\n", StoredLinear)
