// The frozen weights that a checkpoint of contents = "trained" and an adapter leave out: their path, a hash of them,
// and how they were stored.
#pragma once

#include <optional>
#include <string>

#include "host/base/json.hpp"

namespace chassis {

struct BaseReference {
  std::string path;
  std::string hash;        // CheckpointReader::content_hash()
  std::string quant = {};  // the plugin of [quant] that stored them; empty if they were not quantized
  Json quant_config = {};  // the plugin's quantization_config; null if it is not known

  // Adds it to the `about` of a manifest.
  void add_to(Json& about) const {
    about["base"] = {{"path", path}, {"hash", hash}};
    if (!quant.empty()) about["quant"] = quant;
    if (!quant_config.is_null()) about["quant_config"] = quant_config;
  }
  // "models/x (hash 3f2a91c04d5e)"
  std::string text() const { return path + " (hash " + hash.substr(0, 12) + ")"; }
};

// Reads the reference from a manifest's `about`; nothing if the checkpoint has all weights. `where` names the
// checkpoint.
inline std::optional<BaseReference> base_reference(const Json& about, const std::string& where) {
  const auto found = about.find("base");
  if (found == about.end()) return std::nullopt;
  const std::string file = where + "/manifest.json";
  BaseReference out{json_string(*found, "path", file), json_string(*found, "hash", file),
                    json_string_or(about, "quant", "", file)};
  if (const auto config = about.find("quant_config"); config != about.end()) out.quant_config = *config;
  return out;
}

class Session;
// Refers to a model with this path and hash, and records how the session stores its frozen weights.
BaseReference reference_to_base(const Session& session, std::string path, std::string hash);

// Counts a warning if the base weights of `trained` were stored differently, or quantized with other settings, than
// those of the session.
void compare_quantization(const Session& session, const std::string& trained, const BaseReference& reference);

}  // namespace chassis
