// format/zero_import: checkpoints of DeepSpeed's ZeRO, which are pickles. They are only read, and only in a separate
// process.
#include "chassis/plugin.hpp"
#include "chassis/format.hpp"
#include "checkpoint.hpp"

namespace {

class ZeroImport final : public chassis::Format {
 public:
  using Format::Format;
  static constexpr std::string_view kId = "zero_import";
  static constexpr bool kIsolated = true;
  static constexpr std::string_view kDoc = "DeepSpeed ZeRO-1, -2 and -3 checkpoints, for `chassis ckpt import-zero`";

  void scan(const chassis::Directory& directory, chassis::ScanSink& out) override {
    scan_source(zero_import::scan, directory, out);
  }
};

}  // namespace

CHASSIS_PLUGIN("swappable=1\nlicense=Apache-2.0\n", ZeroImport)
