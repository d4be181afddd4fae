// The two members, format/safetensors and format/native: their layouts and scans carried across the boundary.
#include "chassis/plugin.hpp"
#include "chassis/format.hpp"
#include "huggingface.hpp"
#include "native.hpp"

namespace {

using namespace safetensors;

Source source_of(const chassis::Directory& directory) {
  Source source;
  for (uint32_t i = 0; i < directory.num_files(); ++i) {
    const auto entry = directory.entry(i);
    source.files.push_back({std::string(entry.path), entry.num_bytes});
  }
  source.read = [&directory](uint32_t file, uint64_t offset, uint64_t num_bytes, void* out) {
    directory.read(file, offset, {static_cast<std::byte*>(out), num_bytes});
  };
  return source;
}

void send(const SaveLayout& layout, chassis::LayoutSink& out) {
  for (const NewFile& file : layout.files) out.file(file.path, file.header, file.num_bytes, file.rank);
  for (uint32_t i = 0; i < layout.places.size(); ++i) out.place(i, layout.places[i].file, layout.places[i].offset);
  for (const auto& [path, text] : layout.text_files) out.text_file(path, text);
}

class SafetensorsFormat : public chassis::Format {
 public:
  using Format::Format;
  using LayoutFunction = SaveLayout (*)(const chassis_save_request_t&);
  using ScanFunction = void (*)(const Source&, const ScanSink&);

 protected:
  static void layout_by(LayoutFunction function, const chassis_save_request_t& request, chassis::LayoutSink& out) {
    SaveLayout layout;
    try {
      layout = function(request);
    } catch (const Defect& defect) {
      throw chassis::Failure(CHASSIS_INVALID_ARGUMENT, defect.what());
    }
    send(layout, out);
  }

  void scan_by(ScanFunction function, const chassis::Directory& directory, chassis::ScanSink& out) const {
    ScanSink sink;
    sink.tensor = [&out](const FoundTensor& t) {
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
      function(source_of(directory), sink);
    } catch (const NotFound& absent) {
      throw chassis::Failure(CHASSIS_NOT_FOUND, absent.what());
    } catch (const Defect& defect) {
      throw chassis::Failure(CHASSIS_DATA_LOSS, defect.what());
    }
  }
};

class HuggingFace final : public SafetensorsFormat {
 public:
  using SafetensorsFormat::SafetensorsFormat;
  static constexpr std::string_view kId = "safetensors";
  static constexpr bool kWholeTensors = true;
  static constexpr std::string_view kDoc = "Hugging Face directory: model.safetensors, split by size, with an index";
  void layout(const chassis_save_request_t& request, chassis::LayoutSink& out) override {
    layout_by(huggingface_layout, request, out);
  }
  void scan(const chassis::Directory& directory, chassis::ScanSink& out) override {
    scan_by(huggingface_scan, directory, out);
  }
};

class Native final : public SafetensorsFormat {
 public:
  using SafetensorsFormat::SafetensorsFormat;
  static constexpr std::string_view kId = "native";
  static constexpr std::string_view kDoc =
      "Safetensors shards, one set per rank, that torch.distributed.checkpoint reads";
  void layout(const chassis_save_request_t& request, chassis::LayoutSink& out) override {
    layout_by(native_layout, request, out);
  }
  void scan(const chassis::Directory& directory, chassis::ScanSink& out) override {
    scan_by(native_scan, directory, out);
  }
};

}  // namespace

CHASSIS_PLUGIN("license=Apache-2.0\n", HuggingFace, Native)
