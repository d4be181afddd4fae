// From the settings of [data] to the chat template and its masks.
#pragma once

#include "host/config/settings.hpp"
#include "host/data/data_config.hpp"
#include "host/data/tokenizer.hpp"

namespace chassis {

// Reads the template file, if data.template names one, and generation_config.json of model.path. Without a tokenizer
// nothing is compared with it. Throws config errors at the settings, or at a line of the template file.
ChatConfig chat_config(const Settings& settings, const Tokenizer* tokenizer);

}  // namespace chassis
