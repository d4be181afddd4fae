// A format that dies while the last bytes of a file are written.
#include "chassis/format.hpp"
#include "chassis/plugin.hpp"

namespace {

using namespace chassis;

class Crashing final : public Format {
 public:
  static constexpr std::string_view kDoc = "dies in finish(), for tests";
  static constexpr bool kWholeTensors = true;
  using Format::Format;

  void layout(const chassis_save_request_t& request, LayoutSink& out) override {
    uint64_t num_bytes = 0;
    for (uint32_t i = 0; i < request.num_tensors; ++i) num_bytes += request.tensors[i].num_bytes;
    const uint32_t file = out.file("model.bin", "", num_bytes);
    for (uint64_t i = 0, at = 0; i < request.num_tensors; at += request.tensors[i++].num_bytes)
      out.place(static_cast<uint32_t>(i), file, at);
  }
  void finish(const chassis_save_request_t&, uint32_t, FinishSink&) override {
    *static_cast<volatile int*>(nullptr) = 1;
  }
  void scan(const Directory&, ScanSink&) override {}
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", Crashing)
