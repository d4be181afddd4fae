// An adapter that calls functions of the test that loaded it.
#include "scripted_adapter.hpp"

#include "chassis/adapter.hpp"
#include "chassis/options.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Scripted final : public Adapter {
 public:
  static constexpr std::string_view kId = "scripted";
  static constexpr std::string_view kDoc = "test: calls functions of a test";
  static const Options& options() {
    static const Options schema = {option("script", int64_t{0}).doc("address of an AdapterScript")};
    return schema;
  }

  explicit Scripted(const Host& host)
      : Adapter(host), script_(reinterpret_cast<const test::AdapterScript*>(option_value<int64_t>(host, "script"))) {}

  void configure(std::string_view) override {}
  void extend(const AdapterOp&, AdapterBuilder&) override {}
  std::string config(std::string_view, std::string_view) const override { return "{}"; }

  // The raw calls, so that a test sees what the host passes.
  template <typename T>
  static const void* interface(std::string_view id) noexcept {
    static const chassis_adapter_t kTable = [] {
      chassis_adapter_t table = *static_cast<const chassis_adapter_t*>(Adapter::interface<T>(CHASSIS_ADAPTER_ID));
      table.parameter = [](chassis_instance* self, const chassis_adapter_parameter_t* parameter, uint32_t* trained) {
        const auto& script = *static_cast<Scripted&>(member_of<Adapter>(self)).script_;
        return script.parameter ? script.parameter(*parameter, trained) : nullptr;
      };
      table.extend = [](chassis_instance* self, const chassis_adapter_op_t* op, const chassis_adapter_builder_t* b) {
        const auto& script = *static_cast<Scripted&>(member_of<Adapter>(self)).script_;
        return script.extend ? script.extend(*op, *b) : nullptr;
      };
      return table;
    }();
    return id == CHASSIS_ADAPTER_ID ? &kTable : nullptr;
  }

 private:
  const test::AdapterScript* script_;
};

}  // namespace

CHASSIS_PLUGIN("requires=chassis.options/1\nlicense=Apache-2.0\n", Scripted)
