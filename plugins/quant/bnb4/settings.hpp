// The options of [quant], and quantization_config, which has the same settings in a model's config.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chassis/options.hpp"
#include "tables.hpp"

namespace bnb4 {

struct Settings {
  Code code = Code::kNf4;
  int64_t block_size = 64;
  bool is_nested = false;
  bool has_experts = false;  // experts are quantized, too
  std::vector<std::string> skip;
  bool operator==(const Settings&) const = default;
};

const chassis::Options& options();
Settings settings_from_options(const chassis::Host& host);

// "quant.type: ", with the line that sets it.
std::string place_of(const chassis::Host& host, std::string_view option);

// The settings in a model's files. Refuses methods other than the 4 bits of bitsandbytes, by name.
struct FileSettings {
  Code code = Code::kFp4;             // bitsandbytes' default
  std::optional<int64_t> block_size;  // written where it is not the default, by this plugin alone
  bool is_nested = false;
  std::optional<bool> has_experts;  // written if they are quantized, by this plugin alone
  std::vector<std::string> skip;
  std::vector<std::string> unknown_keys;
};
FileSettings parse_quantization_config(std::string_view json);
// The object "quantization_config" of a model that is stored in this way.
std::string quantization_config_text(const Settings& settings);

// Matches as transformers matches llm_int8_skip_modules: a module whose name ends with one of the names, or that is
// inside a module of that name. Names that are regular expressions there are plain text here.
bool is_skipped(const std::vector<std::string>& skip, std::string_view module);

}  // namespace bnb4
