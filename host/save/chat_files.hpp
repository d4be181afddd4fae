// The files that a chat model needs in addition to its weights: its stop tokens and its chat template. Exports and
// checkpoints of a run carry those with which it was trained.
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

// Empty if the run trains no conversations, or if it changes none of these files: model.path and `tokenizer_directory`
// then have them as they were used.
ChatFiles chat_files(const Session& session, const std::string& tokenizer_directory);

}  // namespace chassis
