// Turns the settings of [data] into the chat template and its masks.
#pragma once

#include <string>

#include "host/config/settings.hpp"
#include "host/data/data_config.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// The directory whose generation_config.json applies: model.path, or tokenizer.path if the model has no such file.
// Empty if neither has one.
std::string generation_directory(const Settings& settings);

// Whether data sets of the run are conversations, as far as their formats tell.
bool trains_chats(const Settings& settings);

// Reads the template file, if data.template names one, and generation_config.json of generation_directory(). Without a
// tokenizer nothing is compared with it. Throws config errors at the settings, or at a line of the template file.
ChatConfig chat_config(const Settings& settings, const Tokenizer* tokenizer);

}  // namespace chassis
