// Finds the folder of the step, and the files in it by name.
#include "step_files.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>

namespace zero_import {
namespace {

constexpr char kOptimizerSuffix[] = "_optim_states.pt";

std::string folder_of_step(const Source& source) {
  if (const int64_t latest = source.find("latest"); latest >= 0) {
    const uint64_t num_bytes = source.files[static_cast<size_t>(latest)].num_bytes;
    std::string tag = num_bytes < 256 ? source.text(static_cast<uint32_t>(latest), 0, num_bytes) : "";
    while (!tag.empty() && (tag.back() == '\n' || tag.back() == ' ')) tag.pop_back();
    const auto is_in_it = [&](const SourceFile& file) { return file.path.starts_with(tag + "/"); };
    if (tag.empty() || std::none_of(source.files.begin(), source.files.end(), is_in_it))
      throw Defect("the file 'latest' names " + shown(tag) + ", but there is no such folder");
    return tag + "/";
  }
  std::string folder;
  bool is_first = true;
  for (const SourceFile& file : source.files) {
    if (!file.path.ends_with(kOptimizerSuffix)) continue;
    const std::string here = file.path.substr(0, file.path.rfind('/') + 1);
    if (!is_first && here != folder)
      throw Defect("there are checkpoints in " + shown(folder) + " and " + shown(here) +
                   ", but no file 'latest'; name one of them");
    folder = here;
    is_first = false;
  }
  return folder;
}

// [bf16_]zero_pp_rank_<rank>_mp_rank_<model parallel rank>_optim_states.pt
std::optional<uint32_t> rank_of(std::string_view name) {
  std::string text(name.substr(name.starts_with("bf16_") || name.starts_with("fp16_") ? 5 : 0));
  unsigned rank = 0, model_rank = 0;
  int length = 0;
  if (std::sscanf(text.c_str(), "zero_pp_rank_%5u_mp_rank_%5u_optim_states.pt%n", &rank, &model_rank, &length) != 2 ||
      static_cast<size_t>(length) != text.size())
    return std::nullopt;
  if (model_rank != 0) throw Defect(shown(name) + " is from a model parallel run, which is not supported");
  return rank;
}

}  // namespace

StepFiles find_files(const Source& source) {
  const std::string folder = folder_of_step(source);
  StepFiles found;
  std::map<uint32_t, uint32_t> by_rank;
  for (uint32_t i = 0; i < source.files.size(); ++i) {
    const std::string& path = source.files[i].path;
    if (!path.starts_with(folder) || path.find('/', folder.size()) != path.npos) continue;
    const std::string name = path.substr(folder.size());
    if (name.starts_with("layer_") || name.starts_with("expp_rank_"))
      throw Defect(shown(path) + " is from a pipeline or expert parallel run, which is not supported");
    if (name.ends_with(kModelSuffix)) found.others.emplace(name, i);
    if (!name.ends_with(kOptimizerSuffix)) continue;
    const auto rank = rank_of(name);
    if (!rank) throw Defect(shown(path) + " is not the name of a ZeRO optimizer's file");
    if (!by_rank.emplace(*rank, i).second)
      throw Defect("there are two files of rank " + std::to_string(*rank) + ", such as " + shown(path));
  }
  if (by_rank.empty()) throw NotFound(std::string("no zero_pp_rank_…") + kOptimizerSuffix);
  for (const auto& [rank, file] : by_rank) {
    if (rank != found.optimizer.size())
      throw Defect("the optimizer's file of rank " + std::to_string(found.optimizer.size()) + " is missing: there is " +
                   shown(source.files[file].path));
    found.optimizer.push_back(file);
  }
  return found;
}

}  // namespace zero_import
