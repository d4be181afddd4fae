// Saves in one call, and the files that are copied into an export.
#include "host/checkpoint/writer.hpp"

#include "host/checkpoint/save.hpp"

namespace chassis {
SaveResult CheckpointWriter::save(const SavePlan& plan, const SaveRequest& request) const {
  World alone;
  return save(plan, request, alone);
}

SaveResult CheckpointWriter::save(const SavePlan& plan, const SaveRequest& request, World& world) const {
  return Save(format_, buckets_, plan, request, world, Save::Where::kHere).finish();
}

std::vector<CopiedFile> files_to_copy(const std::string& model_directory, const std::set<std::string>& except) {
  static const std::set<std::string, std::less<>> kNames = {"config.json",
                                                            "generation_config.json",
                                                            "tokenizer.json",
                                                            "tokenizer_config.json",
                                                            "tokenizer.model",
                                                            "special_tokens_map.json",
                                                            "added_tokens.json",
                                                            "vocab.json",
                                                            "vocab.txt",
                                                            "merges.txt",
                                                            "spiece.model",
                                                            "chat_template.jinja",
                                                            "chat_template.json",
                                                            "preprocessor_config.json",
                                                            "processor_config.json"};
  std::vector<CopiedFile> carried;
  const SourceDirectory directory(model_directory);
  for (const std::string& name : kNames) {
    if (except.contains(name)) continue;
    if (directory.find_file(name) < 0) continue;
    carried.push_back(copied_file(model_directory, name));
  }
  return carried;
}

CopiedFile copied_file(const std::string& directory, const std::string& name) {
  return {std::make_shared<const File>(File::open_read(directory + "/" + name)), name};
}

unsigned shared_file_mode(const std::string& directory) { return 0600 | SourceDirectory(directory).shared_mode(); }

}  // namespace chassis
