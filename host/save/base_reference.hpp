// The frozen weights that a checkpoint of contents = "trained" and an adapter leave out: where they were, and a hash of
// them.
#pragma once

#include <optional>
#include <string>

#include "host/base/json.hpp"

namespace chassis {

struct BaseReference {
  std::string path;
  std::string hash;        // CheckpointReader::content_hash()
  std::string quant = {};  // the plugin of [quant] that stored them; empty if they were not quantized

  // Adds it to the `about` of a manifest.
  void add_to(Json& about) const {
    about["base"] = {{"path", path}, {"hash", hash}};
    if (!quant.empty()) about["quant"] = quant;
  }
  // "models/x (3f2a91c04d5e)"
  std::string text() const { return path + " (hash " + hash.substr(0, 12) + ")"; }
};

// That of a manifest's `about`; nothing if the checkpoint has all weights. `where` names the checkpoint.
inline std::optional<BaseReference> base_reference(const Json& about, const std::string& where) {
  const auto found = about.find("base");
  if (found == about.end()) return std::nullopt;
  const std::string file = where + "/manifest.json";
  return BaseReference{json_string(*found, "path", file), json_string(*found, "hash", file),
                       json_string_or(about, "quant", "", file)};
}

}  // namespace chassis
