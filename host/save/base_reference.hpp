// The frozen weights that a checkpoint of contents = "trained" and an adapter leave out: where they were, and a hash of
// them.
#pragma once

#include <optional>
#include <string>

#include "host/base/json.hpp"

namespace chassis {

struct BaseReference {
  std::string path;
  std::string hash;  // CheckpointReader::content_hash()

  Json to_json() const { return {{"path", path}, {"hash", hash}}; }
  // "models/x (3f2a91c04d5e)"
  std::string text() const { return path + " (hash " + hash.substr(0, 12) + ")"; }
};

// That of a manifest's `about`; nothing if the checkpoint has all weights. `where` names the checkpoint.
inline std::optional<BaseReference> base_reference(const Json& about, const std::string& where) {
  const auto found = about.find("base");
  if (found == about.end()) return std::nullopt;
  return BaseReference{json_string(*found, "path", where + "/manifest.json"),
                       json_string(*found, "hash", where + "/manifest.json")};
}

// The plugin of [quant] that stored them, in the same `about`; empty if they were not quantized.
inline std::string quant_of_base(const Json& about, const std::string& where) {
  return json_string_or(about, "quant", "", where + "/manifest.json");
}

}  // namespace chassis
