// Names evaluation sets.
#include "host/config/eval_sets.hpp"

#include <algorithm>
#include <filesystem>

namespace chassis {
namespace {

std::string stem_of(const Setting<std::string>& path) {
  if (!path.is_set()) return "";
  std::filesystem::path whole = std::filesystem::path(*path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // "data/" is "data"
  while (whole.has_extension() && whole.extension() != whole) whole = whole.stem();  // "a.jsonl.gz" is "a"
  const std::string stem = whole.filename().string();
  return stem.find_first_of("*?[") == std::string::npos ? stem : "";
}

}  // namespace

std::vector<std::string> eval_set_names(const Settings::Data& data) {
  std::vector<std::string> names;
  for (const Settings::EvalSet& set : data.eval) {
    names.push_back(set.name.is_set() ? *set.name
                    : data.eval.size() == 1 || !set.path.is_set()
                        ? "eval"
                        : std::filesystem::path(*set.path).stem().string());
  }
  if (!data.eval_fraction.is_set() || *data.eval_fraction <= 0) return names;
  if (data.eval.empty() && data.train.size() == 1) return {"eval"};
  for (size_t i = 0; i < data.train.size(); ++i) {
    const std::string stem = stem_of(data.train[i].path);
    std::string name = "eval_" + (stem.empty() ? std::to_string(i) : stem);
    if (std::ranges::count(names, name) > 0) name += "_" + std::to_string(i);
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> generation_set_names(const Settings::Eval& eval) {
  std::vector<std::string> names;
  for (const Settings::GenerationSet& set : eval.generate) names.push_back(set.name.is_set() ? *set.name : "");
  return names;
}

}  // namespace chassis
