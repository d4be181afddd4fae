// The prefix is that of peft.PeftModel, whose state_dict() names the modules of the model that it wraps.
#include "peft.hpp"

#include <deque>

namespace safetensors {
namespace {

constexpr char kFile[] = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";

}  // namespace

SaveLayout peft_layout(const chassis_save_request_t& request) {
  std::deque<std::string> names;  // that the tensors refer to
  std::vector<FileTensor> tensors = whole_tensors(request);
  for (FileTensor& tensor : tensors) tensor.name = names.emplace_back(std::string(kPrefix) + std::string(tensor.name));
  SaveLayout layout;
  layout.places.resize(request.num_tensors);
  add_file(layout, kFile, std::move(tensors), request_metadata(request), 0);
  return layout;
}

void peft_scan(const Source& source, const ScanSink& sink) {
  const int64_t file = source.find(kFile);
  if (file < 0) {
    if (source.find("adapter_model.bin") >= 0)
      throw NotFound(std::string("no ") + kFile +
                     "; 'adapter_model.bin' is a pickle, which is never read: save the adapter with "
                     "safe_serialization=True");
    throw NotFound(std::string("no ") + kFile);
  }
  const Header header = read_header(source, static_cast<uint32_t>(file));
  for (const auto& [key, value] : header.metadata()) sink.metadata(key, value);
  emit(source, static_cast<uint32_t>(file), header, sink, [](std::string_view name) {
    if (!name.starts_with(kPrefix) || name.size() == kPrefix.size())
      throw Defect(std::string(kFile) + ": tensor '" + std::string(name) + "' does not begin with '" +
                   std::string(kPrefix) + "', as those of PEFT do");
    return name.substr(kPrefix.size());
  });
  emit_value_head(source, sink);
}

}  // namespace safetensors
