// format/zero_import: checkpoints of DeepSpeed's ZeRO, which are pickles. It is only read, and in a process of its own.
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
    zero_import::Source source;
    for (uint32_t i = 0; i < directory.num_files(); ++i) {
      const auto entry = directory.entry(i);
      source.files.push_back({std::string(entry.path), entry.num_bytes});
    }
    source.read = [&directory](uint32_t file, uint64_t offset, uint64_t num_bytes, void* bytes) {
      directory.read(file, offset, {static_cast<std::byte*>(bytes), num_bytes});
    };
    zero_import::Sink sink;
    sink.tensor = [&out](const zero_import::FoundTensor& t) {
      const chassis_disk_tensor_t raw = {sizeof raw,
                                         t.dtype,
                                         chassis::str(t.name),
                                         t.global_shape.data(),
                                         t.box_offset.data(),
                                         t.box_shape.data(),
                                         static_cast<uint32_t>(t.box_shape.size()),
                                         t.rank,
                                         t.num_bytes};
      out.tensor(raw, t.file, t.offset);
    };
    sink.metadata = [&out](std::string_view key, std::string_view value) { out.metadata(key, value); };
    sink.warning = [this](std::string_view key, std::string_view text) { host().count(key, text); };
    try {
      zero_import::scan(source, sink);
    } catch (const zero_import::NotFound& absent) {
      throw chassis::Failure(CHASSIS_NOT_FOUND, absent.what());
    } catch (const zero_import::Defect& defect) {
      throw chassis::Failure(CHASSIS_DATA_LOSS, defect.what());
    }
  }
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", ZeroImport)
