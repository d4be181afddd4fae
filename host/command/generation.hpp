// The preparations of verbs that generate text: `chassis generate` and `chassis serve`.
#pragma once

#include <string>
#include <vector>

#include "host/generate/generation_settings.hpp"
#include "host/session/session.hpp"

namespace chassis {

// Those of [generate] and generation_config.json, with further stop texts. Throws a config error for a stop text that
// is empty. Logs which ones come from the file.
GenerationSettings settings_of_generation(const Session& session, const std::vector<std::string>& stop_texts);

// Throws a config error if the adapter of the run at `from`, or of the session's own run if that is empty, was trained
// with other settings than those of the session, such as alpha. Directories other than runs pass.
void require_adapter_of_run(const Session& session, const std::string& from);

// Warns of a template other than that of the training, because the model has not learned to answer in it. `from` is
// the directory of the weights, or empty for those of the run.
void warn_of_other_template(Session& session, const std::string& from);

}  // namespace chassis
