// The files that other programs need in addition to weights: the tokens that end texts, and the template of a chat
// model. Exports and checkpoints of a run carry those with which it was trained.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/session/session.hpp"

namespace chassis {

struct ChatFiles {
  std::vector<std::pair<std::string, std::string>> written;  // names and texts
  std::set<std::string> left_out;                            // files that would otherwise be copied
};

// Empty if model.path and `tokenizer_directory` have these files as they were used.
ChatFiles chat_files(const Session& session, const std::string& tokenizer_directory);

}  // namespace chassis
