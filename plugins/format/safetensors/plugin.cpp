// The members format/safetensors, format/native and format/peft: their layouts and scans through the C interface.
#include "chassis/plugin.hpp"
#include "chassis/format.hpp"
#include "huggingface.hpp"
#include "native.hpp"
#include "peft.hpp"

namespace {

using namespace safetensors;

void send(const SaveLayout& layout, chassis::LayoutSink& out) {
  for (const NewFile& file : layout.files) out.file(file.path, file.header, file.num_bytes, file.rank);
  for (uint32_t i = 0; i < layout.places.size(); ++i) out.place(i, layout.places[i].file, layout.places[i].offset);
  for (const auto& [path, text] : layout.text_files) out.text_file(path, text);
}

void layout_by(SaveLayout (*function)(const chassis_save_request_t&), const chassis_save_request_t& request,
               chassis::LayoutSink& out) {
  SaveLayout layout;
  try {
    layout = function(request);
  } catch (const Defect& defect) {
    throw chassis::Failure(CHASSIS_INVALID_ARGUMENT, defect.what());
  }
  send(layout, out);
}

class HuggingFace final : public chassis::Format {
 public:
  using Format::Format;
  static constexpr std::string_view kId = "safetensors";
  static constexpr bool kWholeTensors = true;
  static constexpr std::string_view kDoc = "Hugging Face directory: model.safetensors, split by size, with an index";
  void layout(const chassis_save_request_t& request, chassis::LayoutSink& out) override {
    layout_by(huggingface_layout, request, out);
  }
  void scan(const chassis::Directory& directory, chassis::ScanSink& out) override {
    scan_source(huggingface_scan, directory, out);
  }
};

class Native final : public chassis::Format {
 public:
  using Format::Format;
  static constexpr std::string_view kId = "native";
  static constexpr std::string_view kDoc =
      "Safetensors shards, one set per rank, that torch.distributed.checkpoint reads";
  void layout(const chassis_save_request_t& request, chassis::LayoutSink& out) override {
    layout_by(native_layout, request, out);
  }
  void scan(const chassis::Directory& directory, chassis::ScanSink& out) override {
    scan_source(native_scan, directory, out);
  }
};

class Peft final : public chassis::Format {
 public:
  using Format::Format;
  static constexpr std::string_view kId = "peft";
  static constexpr bool kWholeTensors = true;
  static constexpr std::string_view kDoc = "Adapters as PEFT saves them: adapter_model.safetensors";
  void layout(const chassis_save_request_t& request, chassis::LayoutSink& out) override {
    layout_by(peft_layout, request, out);
  }
  void scan(const chassis::Directory& directory, chassis::ScanSink& out) override {
    scan_source(peft_scan, directory, out);
  }
};

}  // namespace

CHASSIS_PLUGIN("swappable=1\nlicense=Apache-2.0\n", HuggingFace, Native, Peft)
