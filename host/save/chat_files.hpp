// What a chat model is used with beside its weights: where it stops, and its chat template. Exports and checkpoints of
// a run carry those that it was trained with.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "host/session/session.hpp"

namespace chassis {

struct ChatFiles {
  std::vector<std::pair<std::string, std::string>> written;  // names and texts
  std::set<std::string> left_out;                            // of the files that would be copied otherwise
};

// Empty if the run trains no conversations, or changes none of these files: model.path and `tokenizer_directory` have
// them as they were used.
ChatFiles chat_files(const Session& session, const std::string& tokenizer_directory);

}  // namespace chassis
