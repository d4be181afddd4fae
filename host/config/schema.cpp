// Look-ups in a schema, and what of it is not available.
#include "host/config/schema.hpp"

#include <algorithm>
#include <iterator>

namespace chassis {
namespace {

constexpr Unavailable kUnavailable[] = {
    {"precision.compute", "fp16", "use \"auto\", \"fp32\" or \"bf16\""},
    {"freeze.groups", "", "models define no groups yet; use freeze.patterns"},
};

}  // namespace

std::span<const Unavailable> unavailable() { return kUnavailable; }

bool is_unavailable(std::string_view key) {
  return std::any_of(std::begin(kUnavailable), std::end(kUnavailable), [&](const Unavailable& entry) {
    return entry.value.empty() && (entry.key == key || (key.starts_with(entry.key) && key[entry.key.size()] == '.'));
  });
}

std::vector<std::string> offered_choices(std::string_view key, const OptionSpec& spec) {
  std::vector<std::string> offered = spec.choices;
  for (const Unavailable& entry : kUnavailable)
    if (entry.key == key && !entry.value.empty()) std::erase(offered, entry.value);
  return offered;
}

std::vector<std::string> offered_keys(const std::string& table, const std::vector<OptionSpec>& specs) {
  std::vector<std::string> names;
  for (const OptionSpec& spec : specs)
    if (!is_unavailable(joined_key(table, spec.name))) names.push_back(spec.name);
  return names;
}

std::string joined_key(const std::string& table, const std::string& key) {
  return table.empty() ? key : table + "." + key;
}

const OptionSpec* TableSpec::find(std::string_view key) const {
  const auto it = std::find_if(keys.begin(), keys.end(), [&](const OptionSpec& spec) { return spec.name == key; });
  return it == keys.end() ? nullptr : &*it;
}

const TableSpec* Schema::find(std::string_view table) const {
  const auto it = std::find_if(tables.begin(), tables.end(), [&](const TableSpec& spec) { return spec.name == table; });
  return it == tables.end() ? nullptr : &*it;
}

Change change_of(const Schema& schema, const std::string& key) {
  const std::string name = without_indexes(key);
  for (size_t dot = name.rfind('.');; dot = name.rfind('.', dot - 1)) {
    const TableSpec* const table = schema.find(dot == std::string::npos ? "" : name.substr(0, dot));
    if (table != nullptr) {
      const size_t begin = dot == std::string::npos ? 0 : dot + 1;
      const OptionSpec* const spec = table->find(name.substr(begin, name.find('.', begin) - begin));
      return spec != nullptr && spec->change ? *spec->change : table->change;
    }
    if (dot == std::string::npos || dot == 0) return Change::kRestart;
  }
}

std::string without_indexes(const std::string& key) {
  std::string out;
  for (size_t start = 0; start <= key.size();) {
    const size_t end = std::min(key.find('.', start), key.size());
    const std::string part = key.substr(start, end - start);
    if (part.find_first_not_of("0123456789") != std::string::npos) out += (out.empty() ? "" : ".") + part;
    start = end + 1;
  }
  return out;
}

std::string key_elsewhere(const Schema& schema, const std::string& key) {
  std::string found;
  for (const TableSpec& table : schema.tables) {
    if (table.find(key) == nullptr || table.name.empty() || is_unavailable(table.name + "." + key)) continue;
    if (!found.empty()) return "";
    found = table.name + "." + key;
  }
  return found;
}

bool is_needed(std::string_view key, ConfigUse use) {
  const bool reads_data = use == ConfigUse::kTraining || use == ConfigUse::kData;
  if (key == "train.seq_len") return reads_data || use == ConfigUse::kEvaluation || use == ConfigUse::kScoring;
  if (key == "data.train") return reads_data;
  if (key == "data.eval") return use == ConfigUse::kEvaluation;
  if (key == "tokenizer.plugin") return use == ConfigUse::kGeneration;
  for (const char* training : {"run.max_steps", "optimizer.lr"})
    if (key == training) return use == ConfigUse::kTraining;
  return true;
}

}  // namespace chassis
