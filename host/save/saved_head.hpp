// The head of scores that a directory holds.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/save/classifier_config.hpp"

namespace chassis {

// The head in a checkpoint, in a model directory or in the files of an adapter of `base`; nothing if it has none. Opens
// the base for an adapter that another program has saved.
std::optional<ScoreHead> saved_head(const std::string& directory, const std::string& base,
                                    const std::vector<std::string>& plugin_path);

}  // namespace chassis
